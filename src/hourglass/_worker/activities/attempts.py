"""One attempt in progress: the control loop's view of it (`Attempt`) and the activity's (`TaskContext`).

Invariants:

- Only the first end of an attempt counts; later ones are dropped.
- A heartbeat that cannot be sent ends nothing; the next one is sent regardless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Protocol, TypeVar, get_type_hints

from hourglass._contract.handle import ActivityResult, ActivityTask, context_of
from hourglass._evaluator.options import RetryPolicy, policy_from
from hourglass._evaluator.specs import ActivitySpec, Payloads
from hourglass._worker.portal import Mailbox
from hourglass._worker.work_log import facts_of
from hourglass.activity import Info
from hourglass.activity._context import ActivityContext, Equipment
from hourglass.converter import Converter, Payload, in_context

logger = logging.getLogger("hourglass.worker")

_BEAT_PAUSE = 0.1

T = TypeVar("T")
Heartbeat = Callable[[bytes, Payloads], None]


class AttemptWork(Protocol):
    """Where an attempt executes. On the control loop; nothing here waits."""

    def cancel(self, reason: str) -> None:
        """Tell it that it was asked to stop (the attempt's context knows already)."""
        ...

    def give_up(self) -> bool:
        """Free what it holds although it has not ended; False if that cannot be."""
        ...

    def stack(self) -> str:
        """Where it stands, the author's frames; empty where that cannot be seen from here."""
        ...


class ItemPublisher(Protocol):
    """Brings what attempts publish to the engine. On the control loop; nothing here waits."""

    def publish(self, attempt: Attempt, name: str, value: Payload) -> None:
        """An attempt publishes an item."""
        ...

    def carried(self, task: ActivityTask) -> Payloads:
        """What a heartbeat of an attempt brings along, where the engine keeps its items in the same place."""
        ...

    def end(
        self, task: ActivityTask, result: ActivityResult, then: Callable[[ActivityResult], object]
    ) -> None:
        """The attempt has ended so; what it published goes first, and `then` is called with its result."""
        ...


class Waiter(Protocol):
    """Is told how an attempt ended: the worker's dispatch."""

    def executed(self, result: ActivityResult) -> object:
        """It has ended so."""
        ...


@dataclass(frozen=True, kw_only=True)
class AttemptSurroundings:
    """What all attempts of an executor share. `ended` is told of the end of each, once, on the control loop."""

    equipment: Equipment
    mailbox: Mailbox
    heartbeat: Heartbeat
    publisher: ItemPublisher | None = None
    ended: Callable[[Attempt, ActivityResult], object]


class TaskContext(ActivityContext):
    """What the activity sees of an attempt. Once that is over its heartbeats go nowhere, and neither holds the other."""

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
    """One attempt in flight. Belongs to the control loop; `context` is what the activity sees of it."""

    __slots__ = (
        "_around",
        "_beat_is_due",
        "_failing_beats",
        "_last_beat",
        "_newest_beat",
        "_publishes",
        "_timers",
        "context",
        "generation",
        "has_beaten",
        "identity",
        "key",
        "over",
        "since",
        "task",
        "told_at",
        "waiter",
        "work",
    )

    def __init__(
        self, task: ActivityTask, waiter: Waiter, around: AttemptSurroundings, generation: int
    ) -> None:
        self.task = task
        self.waiter = waiter
        self.generation = generation
        self.identity = (task.workflow_id, task.run_id, task.activity_id)
        """Which activity this is an attempt of."""
        self.key: bytes | tuple[int, bytes] = (generation, task.token) if task.is_local else task.token
        self.since = self.told_at = monotonic()
        self.over = False
        self.work: AttemptWork | None = None
        self._around = around
        # Plain handles: for a delay that rounds to 0 ms uvloop gives one without `when()`.
        self._timers: dict[object, asyncio.Handle] | None = None
        self._newest_beat: Payloads = ()
        self._beat_is_due = False
        self._last_beat = float("-inf")
        self._failing_beats = False
        self._publishes = False
        self.has_beaten = False
        own = around.equipment
        if own.contextual:
            own = equipped_for(task, own)
        self.context = context = TaskContext(own, task.heartbeat_details)
        context.task, context.attempt = task, self

    def finish(self, result: ActivityResult) -> None:
        """The attempt has ended; only the first to say so counts."""
        if self._beat_is_due:
            self._beat_newest()  # its last words: they may hold the cursor for the next attempt
        if self.over:
            return
        if self._publishes and self._around.publisher is not None:
            self._publishes = False
            self._around.publisher.end(self.task, result, self.finish)
            return
        if self._timers is not None:
            self.let_go()
        else:  # the usual end: what `let_go` does, without the call
            self.over, self.context.attempt = True, None
        self._around.ended(self, result)

    def let_go(self) -> None:
        """It is over for the executor: a later result, its heartbeats and its timers are dropped."""
        self.over = True
        self.context.attempt = None
        if self._timers is not None:
            for timer in self._timers.values():
                timer.cancel()
            self._timers = None

    def finish_threadsafe(self, result: ActivityResult) -> None:
        """As `finish`, from another thread."""
        self._around.mailbox.post(self.finish, result)

    def after(self, delay: float, callback: Callable[[], object]) -> None:
        """Call something later, unless the attempt has ended by then."""
        if self.over:
            return
        if self._timers is None:
            self._timers = {}
        key = object()
        self._timers[key] = self._around.mailbox.loop.call_later(delay, self._due, key, callback)

    def _due(self, key: object, callback: Callable[[], object]) -> None:
        if self._timers is not None:
            self._timers.pop(key, None)  # what has fired is let go of: it holds this attempt
        callback()

    def beat_again(self, now: float) -> None:
        """Send the last details again: the attempt lives."""
        self.told_at = now
        self._beat(self.context.last_details)

    def take_beat(self, details: Payloads) -> None:
        """Pass on a heartbeat that the activity made in another process. From any thread."""
        self.context.last_details = details
        self.send(details)

    def publish(self, item: tuple[str, Payload]) -> None:
        """Have an item, by its name, brought to those who follow the run. From any thread, in order."""
        self.threadsafe(self._publish, item)

    def _publish(self, item: tuple[str, Payload]) -> None:
        publisher = self._around.publisher
        if not self.over and publisher is not None:
            self._publishes = True
            publisher.publish(self, *item)

    def threadsafe(self, callback: Callable[[T], object], argument: T) -> None:
        """Call something on the control loop, from another thread."""
        self._around.mailbox.post(callback, argument)

    def send(self, details: Payloads) -> None:
        """Have a heartbeat sent, from any thread. One that beats in a tight loop wakes the control loop a few times a second."""
        if self.task.is_local:
            return
        self._newest_beat = details
        if not self._beat_is_due:
            self._beat_is_due = True
            self.threadsafe(self._beat_soon, None)

    def _beat_soon(self, _: None) -> None:
        wait = _BEAT_PAUSE - (self._around.mailbox.loop.time() - self._last_beat)
        if wait <= 0.0 or self.over:
            self._beat_newest()
        else:
            self.after(wait, self._beat_newest)

    def _beat_newest(self) -> None:
        self._beat_is_due = False  # before it is read: a beat that comes from now on is sent after it
        self._last_beat = self._around.mailbox.loop.time()
        self._beat(self._newest_beat)

    def _beat(self, details: Payloads) -> None:
        if self.over:
            return
        if self._around.publisher is not None:
            details += self._around.publisher.carried(self.task)
        self.has_beaten = True
        try:
            self._around.heartbeat(self.task.token, details)
        except Exception as error:
            if not self._failing_beats:
                logger.warning(
                    "activity %s (%s): its heartbeats do not get through: %s",
                    self.task.activity_type,
                    self.task.activity_id,
                    error,
                    extra=facts_of(self.task),
                )
            self._failing_beats = True
        else:
            self._failing_beats = False


def equipped_for(task: ActivityTask, equipment: Equipment) -> Equipment:
    """What an attempt is given, with a converter that knows whose values it has."""
    return replace(equipment, converter=in_context(equipment.converter, context_of(task)))


def info_of(task: ActivityTask, converter: Converter) -> Info:
    """What an activity may know of its attempt."""
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
        **{name: show(getattr(task.spec, name)) for name, show in _OF_SPEC.items()},
        headers=task.headers,
        encoded_heartbeat_details=task.heartbeat_details,
        converter=converter,
    )


def _time(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None


def _duration(seconds: float) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None


_SHOWN: dict[Any, Callable[[Any], Any]] = {timedelta | None: _duration, RetryPolicy | None: policy_from}
_OF_SPEC: dict[str, Callable[[Any], Any]] = {
    name: _SHOWN.get(type_, lambda value: value)
    for name, type_ in get_type_hints(Info).items()
    if name in ActivitySpec.__struct_fields__
}
"""What an `Info` tells of the activity's spec, by the same names, and how each is shown."""
