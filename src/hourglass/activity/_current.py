"""What can be called inside a running activity: facts, heartbeats, cancellation, progress, resources, the worker's client.

Each finds the attempt that it is about by the context that the worker has set around the activity (`_context.current`), and
refuses a call from anywhere else by name.
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
            f"activity.{call} works inside a running activity only: not in a workflow, not in a plain call of the function, "
            f"and not in a thread that the activity started by itself (asyncio.to_thread is fine)"
        )
    return context


def _require_thread(call: str, instead: str) -> ActivityContext:
    """As `_require`, for a call that blocks; `instead` is what an `async def` activity does."""
    context = _require(call)
    if asyncio._get_running_loop() is not None:
        raise UsageError(f"activity.{call} would block the loop that runs all async activities: {instead}")
    return context


def in_activity() -> bool:
    """Whether the caller is inside a running activity."""
    return current.get() is not None


def info() -> Info:
    """What is known of this attempt."""
    context = _require("info()")
    chain = context.equipment.inbound
    return context.info if chain is None or chain.outbound is None else chain.outbound.info()


def heartbeat(*details: Any) -> None:
    """Say that the activity makes progress, with details that a later attempt can pick up.

    In a thread this raises `Cancelled`, once, after the activity was cancelled.
    """
    context = _require("heartbeat()")
    chain = context.equipment.inbound
    if chain is None or chain.outbound is None:
        context.heartbeat(details)
    else:
        chain.outbound.heartbeat(*details)


def publish(name: str | Named, value: Any, /) -> None:
    """Tell those who follow the workflow: `activity.publish("tokens", piece)`. `name` is that of a `Progress`, or the
    `Progress` itself, by which they follow it.

    It never waits, and writes nothing into the history. Items of one attempt arrive in order; a later attempt begins
    anew. Not in local activities, of which no engine hears before they end.
    """
    context = _require("publish()")
    text = name if isinstance(name, str) else getattr(name, "name", None)
    if not isinstance(text, str) or not text:
        raise UsageError("activity.publish takes the name of a progress, or a Progress, and the item")
    context.publish(text, value)


@overload
def heartbeat_details(type: type[T], /) -> T | None: ...
@overload
def heartbeat_details(type: Any = Any, /) -> Any: ...
def heartbeat_details(type: Any = Any, /) -> Any:
    """The first detail of the last heartbeat of an earlier attempt, as this type; None if there is none."""
    context = _require("heartbeat_details()")
    details = context.info.encoded_heartbeat_details
    return context.equipment.converter.decode(details[0], type) if details else None


def cancelled() -> bool:
    """Whether this activity was asked to stop. Asking does not take the request: `heartbeat` still raises it."""
    return _require("cancelled()").cancelled


def wait_cancelled(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until the activity is asked to stop: True then, False if the time passes first.

    A True takes the request: you know now, and `heartbeat` will not raise any more. In `async def` activities
    catch `asyncio.CancelledError` instead.
    """
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    instead = "an async activity is cancelled by asyncio.CancelledError at its next await"
    return _require_thread("wait_cancelled()", instead).wait_cancelled(limit)


def cancellation_details() -> CancellationDetails | None:
    """Why this activity was asked to stop; None if it was not."""
    reason = _require("cancellation_details()").cancel_reason
    return None if reason is None else CancellationDetails.of(reason)


def is_worker_shutdown() -> bool:
    """Whether the worker has begun to shut down: it takes no new work, and this attempt is asked to stop when the graceful
    time has passed. A process activity hears of it only then.
    """
    return _require("is_worker_shutdown()").is_worker_shutdown


def wait_for_worker_shutdown_sync(timeout: timedelta | float | None = None) -> bool:
    """Block this thread until the worker begins to shut down: True then, False if the time passes first."""
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    context = _require_thread("wait_for_worker_shutdown_sync()", "await activity.wait_for_worker_shutdown()")
    begun = threading.Event()
    with context.when_worker_stops(begun.set):
        return begun.wait(limit)


async def wait_for_worker_shutdown() -> None:
    """In an `async def` activity: wait until the worker begins to shut down."""
    context = _require("wait_for_worker_shutdown()")
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    with context.when_worker_stops(lambda: loop.call_soon_threadsafe(begun.set)):
        await begun.wait()


def client() -> Client:
    """The client of the worker that runs this activity: to start, signal or look at workflows.

    Its calls block; in an `async def` activity make them in `asyncio.to_thread`. A process activity has none
    and connects for itself.
    """
    context = _require("client()")
    client = context.equipment.client
    if client is None:
        raise UsageError(
            f"activity {context.info.activity_type} was started without a client: connect one of your own there"
        )
    opened: Client = client()
    return opened


def resource(type: type[T], /) -> T:
    """What the worker was given or opened of this type: `activity.resource(Engine)`, of `Worker(…, resources=[…])`.

    All activities of the worker share it, in all their threads. A process activity has none.
    """
    return _require("resource()").equipment.resources.find(type)


def complete_async() -> NoReturn:
    """Leave the activity without ending it: a client completes it later, by `info().task_token` or by its ids.

    The worker sends no heartbeats for it after that, so it needs `@activity.defn(heartbeat_timeout=None)`, or a
    timeout of your own and heartbeats from the program that completes it.
    """
    context = _require("complete_async()")
    facts = context.info
    if facts.is_local:
        raise UsageError("a local activity cannot be completed from outside: call it without .local")
    if facts.heartbeat_timeout == timedelta(seconds=LIVENESS_TIMEOUT):
        raise UsageError(
            f"activity {facts.activity_type} calls complete_async() but its heartbeats are automatic: they stop when it "
            f"returns, and it would time out {LIVENESS_TIMEOUT:g} s later. Declare it with heartbeat_timeout=None (no "
            f"heartbeats), or with a timeout, and let the code that will complete it send heartbeats"
        )
    raise DeferredCompletion


def metric_meter() -> MetricMeter:
    """A meter for this attempt. What it records carries namespace, task queue and activity type.

    A process activity has none: what happens in another process is not in this one's registry.
    """
    context = _require("metric_meter()")
    registry = context.equipment.registry
    if registry is None:
        raise UsageError(
            f"activity {context.info.activity_type} runs in a process of its own, which has no registry of metrics: return "
            "what you want to count, or run it in a thread"
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
"""A logger that says which attempt speaks."""
