"""Runs one attempt of an activity: an `ActivityTask` in, an `ActivityResult` out, whatever the activity does.

The executor lives on the control loop; the activity does not. It is found, its arguments are decoded, it is
called and its result is encoded in a thread of the pool or on the activity loop, because all of that may run
user code.

Invariants:

- `execute` always returns, and returns once: an attempt that is given up at shutdown has its result there and
  then, and what it says later is dropped.
- Attempts are keyed by task token. When a later attempt of the same activity arrives, the former one has been
  given up by the server and is cancelled here.
- Where the author left heartbeats to us, they repeat the last details: one without details would wipe them on
  the server.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hourglass._bridge.handle import ActivityOk, ActivityResult, ActivityTask
from hourglass._engine.events import Payloads
from hourglass._runtime import outcomes
from hourglass._runtime.activity_threads import LoopThread, ThreadPool
from hourglass._runtime.resolver import Resolver
from hourglass.activity import ActivityDefinition, Info
from hourglass.activity._context import ActivityContext, current
from hourglass.activity._options import LIVENESS_TIMEOUT
from hourglass.converter import Converter
from hourglass.errors import EncodeError

logger = logging.getLogger("hourglass.worker")

BEAT_INTERVAL = 10.0

Heartbeat = Callable[[bytes, Payloads], None]


class Attempt:
    """One attempt in flight. Belongs to the control loop; `context` is what the activity sees of it."""

    def __init__(self, task: ActivityTask, converter: Converter, heartbeat: Heartbeat) -> None:
        loop = asyncio.get_running_loop()
        self.task = task
        self.outcome: asyncio.Future[ActivityResult] = loop.create_future()
        self.running: asyncio.Task[None] | None = None
        self._loop = loop
        self._heartbeat = heartbeat
        self._beat_timer: asyncio.TimerHandle | None = None
        self.context = ActivityContext(info_of(task, converter), self._send)

    @property
    def identity(self) -> tuple[str, str, str]:
        """Which activity this is an attempt of."""
        return self.task.workflow_id, self.task.run_id, self.task.activity_id

    def finish(self, result: ActivityResult) -> None:
        """The attempt has ended; only the first to say so counts."""
        if not self.outcome.done():
            self.outcome.set_result(result)
        if self._beat_timer is not None:
            self._beat_timer.cancel()

    def finish_threadsafe(self, result: ActivityResult) -> None:
        """The same, from another thread."""
        self._threadsafe(self.finish, result)

    def beat_every(self, interval: float) -> None:
        """Send the last details again and again while the attempt lives."""

        def beat() -> None:
            if not self.outcome.done():
                self._heartbeat(self.task.token, self.context.last_details)
                self.beat_every(interval)

        self._beat_timer = self._loop.call_later(interval, beat)

    def _send(self, details: Payloads) -> None:
        if not self.task.is_local:
            self._threadsafe(self._beat_if_running, details)

    def _beat_if_running(self, details: Payloads) -> None:
        if not self.outcome.done():
            self._heartbeat(self.task.token, details)

    def _threadsafe(self, callback: Callable[[Any], object], argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:
            pass  # the control loop is closed: nobody is left to be told


class ActivityExecutor:
    """Runs the activities of one worker."""

    def __init__(
        self,
        resolver: Resolver,
        converter: Converter,
        heartbeat: Heartbeat,
        *,
        max_threads: int,
        beat_interval: float = BEAT_INTERVAL,
    ) -> None:
        self._resolver = resolver
        self._converter = converter
        self._heartbeat = heartbeat
        self._beat_interval = beat_interval
        self._pool = ThreadPool("hourglass-activity", max_threads)
        self._loop_thread = LoopThread("hourglass-activity-loop")
        self._attempts: dict[bytes, Attempt] = {}
        self._latest: dict[tuple[str, str, str], Attempt] = {}

    # --- on the control loop -----------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many attempts are in flight."""
        return len(self._attempts)

    async def execute(self, task: ActivityTask) -> ActivityResult:
        """Run an attempt to its end."""
        attempt = Attempt(task, self._converter, self._heartbeat)
        self._enter(attempt)
        try:
            definition = self._resolver.known_activity(task.activity_type)
            if definition is not None and definition.is_async:
                self._start_coroutine(attempt, definition)
            else:
                self._pool.submit(lambda: self._run_in_thread(attempt))
            if not task.is_local and _beats_by_itself(task, definition):
                attempt.beat_every(self._beat_interval)
            return await attempt.outcome
        finally:
            self._leave(attempt)

    def cancel(self, token: bytes, reason: str) -> None:
        """Ask an attempt to stop; one that is not here has ended already."""
        attempt = self._attempts.get(token)
        if attempt is not None:
            attempt.context.cancel(reason)
            self._loop_thread.call_soon(lambda: attempt.running is not None and attempt.running.cancel())

    def cancel_all(self, reason: str) -> None:
        """Ask every attempt to stop."""
        for token in list(self._attempts):
            self.cancel(token, reason)

    def abandon_all(self, reason: str) -> int:
        """End every attempt here and now as failed; returns how many there were. Their threads are left
        behind.
        """
        attempts = list(self._attempts.values())
        for attempt in attempts:
            logger.warning(
                "activity %s (%s) did not stop and is left behind",
                attempt.task.activity_type,
                attempt.task.activity_id,
            )
            attempt.finish(outcomes.abandoned(attempt.task, reason))
        return len(attempts)

    def stop(self) -> None:
        """Let the threads end. Whatever still runs is on its own."""
        self._pool.stop()
        self._loop_thread.stop()

    def _enter(self, attempt: Attempt) -> None:
        former = None if attempt.task.is_local else self._latest.get(attempt.identity)
        if former is not None:
            self.cancel(former.task.token, "SUPERSEDED")
        self._attempts[attempt.task.token] = attempt
        self._latest[attempt.identity] = attempt

    def _leave(self, attempt: Attempt) -> None:
        if self._attempts.get(attempt.task.token) is attempt:
            del self._attempts[attempt.task.token]
        if self._latest.get(attempt.identity) is attempt:
            del self._latest[attempt.identity]

    def _start_coroutine(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        def started(task: asyncio.Task[None]) -> None:
            attempt.running = task
            if attempt.context.cancelled:
                task.cancel()

        self._loop_thread.submit(lambda: self._run_on_loop(attempt, definition), started)

    # --- in the activity's thread or on its loop ---------------------------------------------------------------------

    def _run_in_thread(self, attempt: Attempt) -> None:
        task = attempt.task
        try:
            definition = self._resolver.activity(task.activity_type)
            if definition.is_async:  # found only now: it belongs on the loop
                self._start_coroutine(attempt, definition)
                return
            arguments = definition.signature.decode(self._converter, task.arguments)
        except BaseException as error:
            attempt.finish_threadsafe(outcomes.refused(task, error))
            return
        try:
            # A context of its own: what the activity sets in context variables must not meet the next one in
            # this thread.
            value = contextvars.Context().run(_call, attempt.context, definition.fn, arguments)
        except BaseException as error:
            attempt.finish_threadsafe(self._ended_by(attempt, error))
        else:
            attempt.finish_threadsafe(self._returned(task, value))

    async def _run_on_loop(self, attempt: Attempt, definition: ActivityDefinition) -> None:
        task = attempt.task
        current.set(attempt.context)
        try:
            arguments = definition.signature.decode(self._converter, task.arguments)
        except BaseException as error:
            attempt.finish_threadsafe(outcomes.refused(task, error))
            return
        try:
            value = await definition.fn(*arguments)
        except BaseException as error:
            attempt.finish_threadsafe(self._ended_by(attempt, error))
        else:
            attempt.finish_threadsafe(self._returned(task, value))

    def _ended_by(self, attempt: Attempt, error: BaseException) -> ActivityResult:
        return outcomes.ended_by(attempt.task, error, attempt.context.cancel_reason, self._converter)

    def _returned(self, task: ActivityTask, value: Any) -> ActivityResult:
        try:
            return ActivityOk(task.token, self._converter.encode(value))
        except Exception as error:
            note = EncodeError(f"the result of activity {task.activity_type} cannot be encoded: {error}")
            return outcomes.refused(task, note)


def _call(context: ActivityContext, fn: Callable[..., Any], arguments: list[Any]) -> Any:
    current.set(context)
    return fn(*arguments)


def _beats_by_itself(task: ActivityTask, definition: ActivityDefinition | None) -> bool:
    """Whether we beat for it: the author promised no progress, here or in the call."""
    return task.heartbeat_timeout in (0.0, LIVENESS_TIMEOUT) and (
        definition is None or definition.beats_by_itself
    )


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
        priority_key=task.priority_key,
        encoded_heartbeat_details=task.heartbeat_details,
        converter=converter,
    )


def _time(ns: int) -> datetime | None:
    return datetime.fromtimestamp(ns / 1e9, UTC) if ns else None


def _duration(seconds: float) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds else None
