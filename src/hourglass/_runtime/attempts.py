"""One attempt of an activity in flight, as the control loop sees it, and what the activity may know of it.

Invariants:

- The first to say how an attempt ended is heard, nobody after it.
- A process that an activity forked cannot speak: what it says is dropped here.
- A heartbeat that cannot be sent ends nothing: the next is tried all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from hourglass._bridge.handle import ActivityResult, ActivityTask
from hourglass._engine.events import Payloads
from hourglass._engine.options import policy_from
from hourglass._runtime.mailbox import Mailbox
from hourglass.activity import Info
from hourglass.activity._context import ActivityContext
from hourglass.activity._interception import ActivityInboundInterceptor
from hourglass.converter import Converter
from hourglass.metrics import Registry, default_registry

logger = logging.getLogger("hourglass.worker")

_BEAT_PAUSE = 0.1

T = TypeVar("T")
Heartbeat = Callable[[bytes, Payloads], None]


class Work(Protocol):
    """Where an attempt executes. On the control loop; nothing here waits."""

    def cancel(self, reason: str) -> None:
        """Tell it that it was asked to stop (the attempt's context knows already)."""
        ...

    def give_up(self) -> bool:
        """Free what it holds although it has not ended; False if that cannot be."""
        ...


class Attempt:
    """One attempt in flight. Belongs to the control loop; `context` is what the activity sees of it.

    At its end `leave` is called with it, and then `ended` with its result: once, on the control loop.
    """

    __slots__ = (
        "_beat_is_due",
        "_ended",
        "_failing_beats",
        "_heartbeat",
        "_last_beat",
        "_leave",
        "_loop",
        "_mailbox",
        "_newest_beat",
        "_timers",
        "context",
        "identity",
        "over",
        "task",
        "work",
    )

    def __init__(
        self,
        task: ActivityTask,
        ended: Callable[[ActivityResult], object],
        converter: Converter,
        heartbeat: Heartbeat,
        leave: Callable[[Attempt], object],
        mailbox: Mailbox,
        *,
        client: Callable[[], Any] | None = None,
        payload_limit: int | None = None,
        inbound: ActivityInboundInterceptor | None = None,
        registry: Registry | None = default_registry,
    ) -> None:
        self.task = task
        self.identity = (task.workflow_id, task.run_id, task.activity_id)
        """Which activity this is an attempt of."""
        self.over = False
        self.work: Work | None = None
        self._loop = mailbox.loop
        self._leave = leave
        self._heartbeat = heartbeat
        self._ended = ended
        self._mailbox = mailbox
        self._timers: list[asyncio.TimerHandle] = []
        self._newest_beat: Payloads = ()
        self._beat_is_due = False
        self._last_beat = float("-inf")
        self._failing_beats = False
        self.context = ActivityContext(
            partial(info_of, task, converter),
            self._send,
            converter=converter,
            last_details=task.heartbeat_details,
            client=client,
            payload_limit=payload_limit,
            inbound=inbound,
            registry=registry,
        )

    def finish(self, result: ActivityResult) -> None:
        """The attempt has ended; only the first to say so counts."""
        if self._beat_is_due:
            self._beat_newest()  # its last words: they may hold the cursor for the next attempt
        if not self.over:
            self.let_go()
            self._leave(self)
            self._ended(result)

    def let_go(self) -> None:
        """Nobody wants to hear of it any more."""
        self.over = True
        self.context.end()
        if self._timers:
            for timer in self._timers:
                timer.cancel()
            self._timers.clear()

    def finish_threadsafe(self, result: ActivityResult) -> None:
        """As `finish`, from another thread."""
        self._mailbox.post(self.finish, result)

    def after(self, delay: float, callback: Callable[[], object]) -> None:
        """Call something later, unless the attempt has ended by then."""
        if not self.over:
            self._timers.append(self._loop.call_later(delay, callback))

    def beat_again(self) -> None:
        """Send the last details again: the attempt lives."""
        self._beat(self.context.last_details)

    def take_beat(self, details: Payloads) -> None:
        """Pass on a heartbeat that the activity made in another process. From any thread."""
        self.context.last_details = details
        self._send(details)

    def threadsafe(self, callback: Callable[[T], object], argument: T) -> None:
        """Call something on the control loop, from another thread."""
        self._mailbox.post(callback, argument)

    def _send(self, details: Payloads) -> None:
        """Have a heartbeat sent. One that beats in a tight loop wakes the control loop a few times a second, no more."""
        if self.task.is_local:
            return
        self._newest_beat = details
        if not self._beat_is_due:
            self._beat_is_due = True
            self.threadsafe(self._beat_soon, None)

    def _beat_soon(self, _: None) -> None:
        since = self._loop.time() - self._last_beat
        if since >= _BEAT_PAUSE:
            self._beat_newest()
        else:
            self._timers.append(self._loop.call_later(_BEAT_PAUSE - since, self._beat_newest))

    def _beat_newest(self) -> None:
        self._last_beat = self._loop.time()
        self._beat_is_due = False  # before it is read: a beat that comes from now on is sent after it
        self._timers = [
            timer for timer in self._timers if not timer.cancelled() and timer.when() > self._last_beat
        ]
        self._beat(self._newest_beat)

    def _beat(self, details: Payloads) -> None:
        if self.over:
            return
        try:
            self._heartbeat(self.task.token, details)
        except Exception as error:
            if not self._failing_beats:
                logger.warning(
                    "activity %s (%s): its heartbeats do not get through: %s",
                    self.task.activity_type,
                    self.task.activity_id,
                    error,
                )
            self._failing_beats = True
        else:
            self._failing_beats = False


def info_of(task: ActivityTask, converter: Converter) -> Info:
    """What an activity may know of its attempt."""
    return Info(
        activity_id=task.activity_id,
        activity_type=task.activity_type,
        attempt=task.attempt,
        task_token=task.token,
        is_local=task.is_local,
        namespace=task.namespace,
        task_queue=task.task_queue,
        workflow_id=task.workflow_id,
        workflow_run_id=task.run_id,
        workflow_type=task.workflow_type,
        scheduled_time=_time(task.scheduled_time_ns),
        current_attempt_scheduled_time=_time(task.current_attempt_scheduled_time_ns),
        started_time=_time(task.started_time_ns),
        schedule_to_close_timeout=_duration(task.schedule_to_close_timeout),
        start_to_close_timeout=_duration(task.start_to_close_timeout),
        heartbeat_timeout=_duration(task.heartbeat_timeout),
        retry_policy=policy_from(task.retry_policy),
        priority_key=task.priority_key,
        headers=task.headers,
        encoded_heartbeat_details=task.heartbeat_details,
        converter=converter,
    )


def _time(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None


def _duration(seconds: float) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None
