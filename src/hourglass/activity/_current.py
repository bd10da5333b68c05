"""The functions to call in a running activity: they access its properties, heartbeats, cancellation, progress and resources,
and the worker's client.

Each function finds the attempt through the context that the worker has set (`_context.current`). Outside of an activity it
raises `UsageError`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, overload

from hourglass._logs import Speaker, SpeakerLogger
from hourglass.activity._context import (
    ActivityContext,
    CancellationDetails,
    DeferredCompletion,
    Info,
    Named,
    T,
    current,
)
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.errors import UsageError
from hourglass.metrics import MetricMeter

if TYPE_CHECKING:
    from hourglass.client import Client


def _require(call: str) -> ActivityContext:
    context = current.get()
    if context is None:
        raise UsageError(
            f"activity.{call} works only inside a running activity: not in a workflow, not in a plain call of the function, "
            f"and not in a thread that the activity started itself (asyncio.to_thread is fine)"
        )
    return context


def _require_thread(call: str, instead: str) -> ActivityContext:
    """Return the current context for a blocking call. Raise `UsageError` on an event loop; `instead` is the advice for
    `async def` activities.
    """
    context = _require(call)
    if asyncio._get_running_loop() is not None:
        raise UsageError(f"activity.{call} would block the loop that runs all async activities: {instead}")
    return context


def in_activity() -> bool:
    """Return whether the caller runs inside an activity."""
    return current.get() is not None


def info() -> Info:
    """Return the properties of this attempt."""
    context = _require("info()")
    chain = context.equipment.inbound
    return context.info if chain is None or chain.outbound is None else chain.outbound.info()


def heartbeat(*details: Any) -> None:
    """Report that the activity makes progress, with details for a later attempt.

    In an activity that runs in a thread, raise `Cancelled`, once, if the activity was cancelled.
    """
    context = _require("heartbeat()")
    chain = context.equipment.inbound
    if chain is None or chain.outbound is None:
        context.heartbeat(details)
    else:
        chain.outbound.heartbeat(*details)


def publish(name: str | Named, value: Any, /) -> None:
    """Publish an item to the followers of the workflow: `activity.publish("tokens", piece)`. `name` is a
    `Progress` or its name.

    The call never blocks and writes nothing to the history. The items of one attempt arrive in order. A later attempt
    publishes its items from the start. Local activities cannot publish, because the engine does not know a local activity
    until it has ended.
    """
    context = _require("publish()")
    text = name if isinstance(name, str) else getattr(name, "name", None)
    if not isinstance(text, str) or not text:
        raise UsageError("activity.publish takes a Progress or its name, and the item")
    context.publish(text, value)


@overload
def heartbeat_details(type: type[T], /) -> T | None: ...
@overload
def heartbeat_details(type: Any = Any, /) -> Any: ...
def heartbeat_details(type: Any = Any, /) -> Any:
    """Return the first detail of an earlier attempt's last heartbeat, decoded as this type; None if there is none."""
    context = _require("heartbeat_details()")
    details = context.info.encoded_heartbeat_details
    return context.equipment.converter.decode(details[0], type) if details else None


def cancelled() -> bool:
    """Return whether cancellation was requested. This does not consume the request: the next `heartbeat` still raises
    `Cancelled`.
    """
    return _require("cancelled()").cancelled


def wait_cancelled(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until cancellation is requested and return True, or return False after the timeout.

    Once this function has returned True, `heartbeat` no longer raises `Cancelled`. In `async def` activities, catch
    `asyncio.CancelledError` instead.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    instead = "an async activity is cancelled by asyncio.CancelledError at its next await"
    return _require_thread("wait_cancelled()", instead).wait_cancelled(limit)


def cancellation_details() -> CancellationDetails | None:
    """Return the reasons for the cancellation of this activity; None if it was not cancelled."""
    reason = _require("cancellation_details()").cancel_reason
    return None if reason is None else CancellationDetails.of(reason)


def is_worker_shutdown() -> bool:
    """Return whether the worker has begun to shut down. The worker then receives no new tasks, and cancels this attempt
    after the graceful shutdown time. A process activity is notified only when that time has passed.
    """
    return _require("is_worker_shutdown()").is_worker_shutdown


def wait_for_worker_shutdown_sync(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until the worker begins to shut down and return True, or return False after the
    timeout.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    context = _require_thread("wait_for_worker_shutdown_sync()", "await activity.wait_for_worker_shutdown()")
    begun = threading.Event()
    with context.when_worker_stops(begun.set):
        return begun.wait(limit)


async def wait_for_worker_shutdown() -> None:
    """Wait, in an `async def` activity, until the worker begins to shut down."""
    context = _require("wait_for_worker_shutdown()")
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    with context.when_worker_stops(lambda: loop.call_soon_threadsafe(begun.set)):
        await begun.wait()


def client() -> Client:
    """Return the client of the worker that runs this activity: to start, signal or query workflows.

    The client's calls block. In an `async def` activity, make them in `asyncio.to_thread`. A process activity has no such
    client and must open its own connection.
    """
    context = _require("client()")
    client = context.equipment.client
    if client is None:
        raise UsageError(
            f"activity {context.info.activity_type} cannot use the worker's client: connect a client in the activity"
        )
    opened: Client = client()
    return opened


def resource(type: type[T], /) -> T:
    """Return the worker's resource of this type: `activity.resource(Engine)`, from `Worker(…, resources=[…])`.

    All activities of the worker share the resource, in all their threads. A process activity has no resources.
    """
    return _require("resource()").equipment.resources.find(type)


def complete_async() -> NoReturn:
    """Leave the activity without completing it. A client completes the activity later, by `info().task_token` or by the
    workflow's and activity's ids.

    The worker then sends no more heartbeats for the activity. Declare the activity with
    `@activity.defn(heartbeat_timeout=None)`, or set a timeout and send heartbeats from the program that completes it.
    """
    context = _require("complete_async()")
    facts = context.info
    if facts.is_local:
        raise UsageError("a local activity cannot be completed asynchronously: call it without .local")
    if facts.heartbeat_timeout == timedelta(seconds=LIVENESS_TIMEOUT):
        raise UsageError(
            f"activity {facts.activity_type} calls complete_async() but its heartbeats are automatic: they stop when the "
            f"function returns, so the activity would time out {LIVENESS_TIMEOUT:g} s later. Declare the activity with "
            "heartbeat_timeout=None (no heartbeats), or with a timeout, and let the code that will complete it send "
            "heartbeats"
        )
    raise DeferredCompletion


def metric_meter() -> MetricMeter:
    """Return a meter for this attempt. Its metrics have the labels namespace, task queue and activity type.

    Process activities have no meter, because a separate process cannot access the worker's registry.
    """
    context = _require("metric_meter()")
    registry = context.equipment.registry
    if registry is None:
        raise UsageError(
            f"activity {context.info.activity_type} runs in a separate process, which has no metrics registry: return "
            "the values to count, or run it in a thread"
        )
    facts = context.info
    return MetricMeter(
        registry,
        {
            "namespace": facts.namespace,
            "task_queue": facts.task_queue,
            "activity_type": facts.activity_type,
        },
    )


class _ActivityLogger(SpeakerLogger):
    def speaker(self) -> Speaker | None:
        context = current.get()
        if context is None:
            return None
        facts = context.info
        ids = {
            "activity_type": facts.activity_type,
            "activity_id": facts.activity_id,
            "attempt": facts.attempt,
            "workflow_id": facts.workflow_id,
            "workflow_run_id": facts.workflow_run_id,
        }
        more = {
            **ids,
            "namespace": facts.namespace,
            "task_queue": facts.task_queue,
            "workflow_type": facts.workflow_type,
        }
        place = f"{facts.activity_type} {facts.activity_id}, attempt {facts.attempt}, workflow {facts.workflow_id}"
        return Speaker(place, ids, {"hourglass_activity": more})


logger = _ActivityLogger(logging.getLogger("hourglass.activity"), {})
"""A logger that adds the current attempt's ids to each message."""
