"""One attempt in progress, as seen by the control loop (`Attempt`) and by the activity (`TaskContext`).

Invariants:

- Only the first result of an attempt counts. Later results are dropped.
- A heartbeat that cannot be sent has no effect on the attempt or on later heartbeats.
- The last heartbeat of an attempt is sent before its result: it may contain details that the next attempt
  needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, TypeVar, get_type_hints

from hourglass._contract.handle import ActivityResult, ActivityTask, context_of
from hourglass._evaluator.options import RetryPolicy, policy_from
from hourglass._evaluator.specs import ActivitySpec, Payloads
from hourglass._worker.mailbox import Mailbox
from hourglass._worker.work_log import facts_of
from hourglass.activity import Info
from hourglass.activity._context import ActivityContext, Equipment
from hourglass.converter import Converter, Payload, in_context

if TYPE_CHECKING:
    from hourglass._worker.activities.publishing import ProgressSender

logger = logging.getLogger("hourglass.worker")

HEARTBEAT_PAUSE = 0.1
"""The minimum time in seconds between two heartbeats of an attempt."""

T = TypeVar("T")
Heartbeat: TypeAlias = Callable[[bytes, Payloads], None]
Report: TypeAlias = Callable[[ActivityResult], object]
"""The receiver of an attempt's result. Called once per attempt."""
AttemptKey: TypeAlias = bytes | tuple[int, bytes]
"""The task token. For a local activity, the token together with the generation of its handle, because each
handle numbers its local activities from one.
"""


class AttemptWork:
    """The execution of an attempt in a thread, on an event loop or in a process. Must be used on the control
    loop. No method blocks. The defaults are those of code that occupies no thread and cannot be inspected.
    """

    __slots__ = ()

    is_process: ClassVar[bool] = False
    """Whether the attempt executes in a process. A process can be killed at any time, and the attempt's end is
    then reported as usual.
    """
    is_foreign: ClassVar[bool] = False
    """Whether the thread belongs to the author's executor. Such a thread is never given up."""

    def cancel(self, reason: str) -> None:
        """Deliver a cancellation. The attempt's context has already been notified."""

    def abandon(self) -> bool:
        """Release the thread or process of an attempt that has not ended. Return False if that is not possible."""
        return True

    def stack(self) -> str:
        """Return the current stack (the author's frames only), or "" if it is not accessible."""
        return ""


class TimerHandle(Protocol):
    """A scheduled callback."""

    def cancel(self) -> object:
        """Prevent the callback from being called."""
        ...


class Timers(Protocol):
    """The clock for heartbeats and grace periods. It is the engine's clock, so that tests can run on virtual time."""

    def time(self) -> float:
        """Return the time in seconds since an arbitrary start."""
        ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        """Call `callback(*args)` after `delay` seconds."""
        ...


class LoopTimers:
    """A real clock: the monotonic clock, with timers of the control loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Timers have no `when()`, because for a delay that rounds to 0 ms uvloop returns a plain handle.
        self.call_later = loop.call_later
        self.time = monotonic


@dataclass(frozen=True, kw_only=True)
class AttemptSurroundings:
    """The objects that all attempts of an executor share. `ended` is called on the control loop, once per attempt."""

    equipment: Equipment
    mailbox: Mailbox
    timers: Timers
    heartbeat: Heartbeat
    publisher: ProgressSender | None = None
    ended: Callable[[Attempt, ActivityResult], object]


class TaskContext(ActivityContext):
    """The context with which an activity accesses its attempt. After the end of the attempt, the context no
    longer refers to it, and drops heartbeats.
    """

    __slots__ = ("attempt", "task")

    task: ActivityTask
    attempt: Attempt | None

    def _make_info(self) -> Info:
        return info_of(self.task, self.equipment.converter)

    def _send(self, details: Payloads) -> None:
        attempt = self.attempt
        if attempt is not None:
            attempt.send(details)

    def _publish(self, name: str, value: Payload) -> None:
        attempt = self.attempt
        if attempt is not None:
            attempt.publish((name, value))


class Attempt:
    """One attempt in progress. Must be used on the control loop. The activity accesses only its `context`."""

    __slots__ = (
        "_around",
        "_failing_heartbeats",
        "_heartbeat_is_due",
        "_last_heartbeat",
        "_newest_details",
        "_publishes",
        "_timers",
        "context",
        "generation",
        "has_sent_heartbeat",
        "heartbeat_at",
        "identity",
        "key",
        "over",
        "report",
        "since",
        "task",
        "work",
    )

    def __init__(
        self, task: ActivityTask, report: Report, around: AttemptSurroundings, generation: int
    ) -> None:
        self.task = task
        self.report = report
        self.generation = generation
        self.identity = (task.workflow_id, task.run_id, task.activity_id)
        """The identity of the activity, which is equal for all of its attempts."""
        self.key: AttemptKey = (generation, task.token) if task.is_local else task.token
        self.since = self.heartbeat_at = around.timers.time()
        self.over = False
        self.work: AttemptWork | None = None
        self._around = around
        self._timers: dict[object, TimerHandle] | None = None
        self._newest_details: Payloads = ()
        self._heartbeat_is_due = False
        self._last_heartbeat = float("-inf")
        self._failing_heartbeats = False
        self._publishes = False
        self.has_sent_heartbeat = False
        equipment = around.equipment
        if equipment.contextual:
            converter = in_context(equipment.converter, context_of(task))
            equipment = replace(equipment, converter=converter)
        self.context = context = TaskContext(equipment, task.heartbeat_details)
        context.task, context.attempt = task, self

    @property
    def name(self) -> str:
        """The activity type and id, and the number of the attempt."""
        return attempt_name(self.task)

    def finish(self, result: ActivityResult) -> None:
        """End the attempt with a result. Do nothing if the attempt has already ended."""
        if self._heartbeat_is_due:
            self._send_newest_heartbeat()
        if self.over:
            return
        if self._publishes and self._around.publisher is not None:
            self._publishes = False
            self._around.publisher.end(self.task, result, self.finish)
            return
        if self._timers is not None:
            self.discard()
        else:  # the usual case: the code of `discard`, inlined
            self.over, self.context.attempt = True, None
        self._around.ended(self, result)

    def discard(self) -> None:
        """End the attempt without a result. Cancel its timers, and ignore later heartbeats and results."""
        self.over = True
        self.context.attempt = None
        if self._timers is not None:
            for timer in self._timers.values():
                timer.cancel()
            self._timers = None

    def finish_threadsafe(self, result: ActivityResult) -> None:
        """Call `finish` from any thread."""
        self._around.mailbox.post(self.finish, result)

    def after(self, delay: float, callback: Callable[[], object]) -> None:
        """Call `callback` after `delay` seconds, unless the attempt ends first."""
        if self.over:
            return
        if self._timers is None:
            self._timers = {}
        key = object()
        self._timers[key] = self._around.timers.call_later(delay, self._call_due, key, callback)

    def _call_due(self, key: object, callback: Callable[[], object]) -> None:
        if self._timers is not None:
            self._timers.pop(
                key, None
            )  # a fired timer refers back to this attempt: remove the reference cycle
        callback()

    def repeat_heartbeat(self, now: float) -> None:
        """Send an automatic heartbeat with the last details of the activity."""
        self.heartbeat_at = now
        self._send_heartbeat(self.context.last_details)

    def forward_heartbeat(self, details: Payloads) -> None:
        """Send a heartbeat that the activity reported in another process. May be called on any thread."""
        self.context.last_details = details
        self.send(details)

    def publish(self, item: tuple[str, Payload]) -> None:
        """Publish an item, which is passed with its name. May be called on any thread. Items keep their order."""
        self.threadsafe(self._publish, item)

    def _publish(self, item: tuple[str, Payload]) -> None:
        publisher = self._around.publisher
        if not self.over and publisher is not None:
            self._publishes = True
            publisher.publish(self, *item)

    def threadsafe(self, callback: Callable[[T], object], argument: T) -> None:
        """Call `callback(argument)` on the control loop, from any thread."""
        self._around.mailbox.post(callback, argument)

    def send(self, details: Payloads) -> None:
        """Send a heartbeat. May be called on any thread. Heartbeats in a tight loop wake the control loop only
        a few times a second.
        """
        if self.task.is_local:
            return
        self._newest_details = details
        if not self._heartbeat_is_due:
            self._heartbeat_is_due = True
            self.threadsafe(self._send_heartbeat_soon, None)

    def _send_heartbeat_soon(self, _: None) -> None:
        wait = HEARTBEAT_PAUSE - (self._around.timers.time() - self._last_heartbeat)
        if wait <= 0.0 or self.over:
            self._send_newest_heartbeat()
        else:
            self.after(wait, self._send_newest_heartbeat)

    def _send_newest_heartbeat(self) -> None:
        self._heartbeat_is_due = (
            False  # reset before the details are read, so that a later heartbeat is sent separately
        )
        self._last_heartbeat = self._around.timers.time()
        self._send_heartbeat(self._newest_details)

    def _send_heartbeat(self, details: Payloads) -> None:
        if self.over:
            return
        if self._around.publisher is not None:
            details += self._around.publisher.carried(self.task)
        self.has_sent_heartbeat = True
        try:
            self._around.heartbeat(self.task.token, details)
        except Exception as error:
            if not self._failing_heartbeats:
                logger.warning(
                    "activity %s (%s): heartbeats cannot be sent: %s",
                    self.task.activity_type,
                    self.task.activity_id,
                    error,
                    extra=facts_of(self.task),
                )
            self._failing_heartbeats = True
        else:
            self._failing_heartbeats = False


def attempt_name(task: ActivityTask) -> str:
    """Return the activity type and id, and the number of the attempt."""
    return f"{task.activity_type} ({task.activity_id}, attempt {task.attempt})"


def info_of(task: ActivityTask, converter: Converter) -> Info:
    return Info(
        activity_id=task.activity_id,
        activity_type=task.activity_type,
        attempt=task.attempt,
        task_token=task.token,
        is_local=task.is_local,
        namespace=task.namespace,
        workflow_id=task.workflow_id,
        workflow_run_id=task.run_id,
        workflow_type=task.workflow_type,
        activity_run_id=task.activity_run_id or None,
        scheduled_time=_time(task.scheduled_time_ns),
        current_attempt_scheduled_time=_time(task.current_attempt_scheduled_time_ns),
        started_time=_time(task.started_time_ns),
        **{name: show(getattr(task.spec, name)) for name, show in _SPEC_FIELDS.items()},
        headers=task.headers,
        encoded_heartbeat_details=task.heartbeat_details,
        converter=converter,
    )


def _time(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None


def _duration(seconds: float) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None


_SHOWN: dict[Any, Callable[[Any], Any]] = {timedelta | None: _duration, RetryPolicy | None: policy_from}
_SPEC_FIELDS: dict[str, Callable[[Any], Any]] = {
    name: _SHOWN.get(type_, lambda value: value)
    for name, type_ in get_type_hints(Info).items()
    if name in ActivitySpec.__struct_fields__
}
"""The fields of `Info` that are fields of the spec, with the functions that convert their values."""
