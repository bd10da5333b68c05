"""The attempts of local activities that one handle's worker executes, like Core's local activity manager.

Must not know: activations, histories, the engine. This module receives requests to execute and to cancel local
activities, passes attempts to the handle, and reports the result of each local activity. It also waits for short
backoffs between attempts. Nothing here is durable: if a crash loses an attempt, the replay of its run requests it
again.

Invariants:

- Each local activity ends once, unless its run is evicted first.
- An attempt that a worker has received stays in progress until the worker has completed it, even if the run no longer
  waits for it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

import msgspec

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    HandleConfig,
)
from hourglass._embedded.activations import local_activities
from hourglass._embedded.activations.local_activities import (
    Ending,
    LocalRequest,
    LocalResult,
    RunLocal,
    cancelled_at_once,
)
from hourglass._embedded.clock import Cancel, Clock, later, to_ns
from hourglass._embedded.matching.activity_dispatch import NEGLIGIBLE, shutdown_failure
from hourglass._embedded.runs.outbox import Outbox
from hourglass._embedded.transitions.run import Run
from hourglass._evaluator.retries import complete_retry
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import ApplicationFailure, Failure, Payload
from hourglass.errors import StorageError, TimeoutType

_TOKEN = b"local/"

LOOK_AGAIN = to_ns(5.0)
"""The time in nanoseconds after which an attempt is checked again if it is overdue but still waits for a commit."""


class _Phase(Enum):
    STAGED = auto()  # waiting for the change that the attempt depends on
    WAITING = auto()  # waiting for a slot of the worker
    EXECUTING = auto()  # executing in a worker
    PAUSING = auto()  # backing off until `ready_ns`
    OVER = auto()


@dataclass(eq=False)
class _Attempt:
    """A local activity and the state of its current attempt."""

    run: Run
    request: RunLocal
    ready_ns: int
    number: int
    phase: _Phase = _Phase.STAGED
    token: bytes = b""
    started_ns: int = 0
    told_to_cancel: bool = False
    pause_ns: int = 0
    """The backoff before this attempt."""
    alarm: Cancel | None = None

    @property
    def deadline(self) -> tuple[int, TimeoutType]:
        """The next deadline, and the kind of timeout."""
        request = self.request
        return local_activities.deadline(
            request.command, request.original_schedule_ns, self.ready_ns, self.started_ns
        )


class LocalAttempts:
    """The local attempts of one worker, by run id and sequence number.

    `ended` is called with the result of each local activity. `stalled` is called with a run id when the handle is
    closing and the run has no attempt in progress. `changed` is called when there may be an item for the worker.
    """

    def __init__(
        self,
        clock: Clock,
        config: HandleConfig,
        namespace: str,
        *,
        outbox: Outbox,
        ended: Callable[[str, LocalResult], object],
        stalled: Callable[[str], object],
        changed: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._config = config
        self._namespace = namespace
        self._outbox = outbox
        self._ended = ended
        self._stalled = stalled
        self._changed = changed
        self._known: dict[str, dict[int, _Attempt]] = {}
        self._staged = 0
        self._waiting: deque[_Attempt] = deque()
        self._executing: dict[bytes, _Attempt] = {}
        self._forgotten: set[bytes] = set()
        self._cancels: deque[ActivityCancel] = deque()
        self._numbers = itertools.count(1)
        self._closing = False
        self._stopped = False
        self.in_use = False
        """Whether any local activity has ever been requested. If not, nothing here needs to be checked."""

    def carry_out(self, run: Run, requests: Sequence[LocalRequest], number: int) -> list[LocalResult]:
        """Carry out the requests of a run. Return the results of local activities that have already ended.

        `number` is the number of the change that must be durable before an attempt may start.
        """
        results = [
            self.submit(run, request, number)
            if isinstance(request, RunLocal)
            else self.cancel(run.run_id, request.seq)
            for request in requests
        ]
        return [result for result in results if result is not None]

    def submit(self, run: Run, request: RunLocal, number: int = 0) -> LocalResult | None:
        """Schedule an attempt of a local activity. Return its result if it has already timed out."""
        command = request.command
        now = self._clock.now_ns()
        when, kind = local_activities.deadline(command, request.original_schedule_ns, now, 0)
        if when and kind is TimeoutType.SCHEDULE_TO_CLOSE and when <= now:
            return self._late(request, kind, command.attempt)
        attempt = _Attempt(run, request, now, max(command.attempt, 1))
        self.in_use = True
        self._known.setdefault(run.run_id, {})[command.seq] = attempt
        self._staged += 1
        self._outbox.stage(number, partial(self._release, attempt))
        self._set_alarm(attempt)
        return None

    def _release(self, attempt: _Attempt, error: StorageError | None) -> None:
        """Allow an attempt to start, because the change that it depends on is durable.

        If the change can never become durable, do nothing: either the run is parked or the engine has failed.
        """
        self._staged -= 1
        if attempt.phase is not _Phase.STAGED or error is not None:
            return
        attempt.phase = _Phase.WAITING
        # The time spent waiting for the commit does not count toward any timeout.
        request, late = attempt.request, self._clock.now_ns() - attempt.ready_ns
        if late > to_ns(local_activities.limits(request.command)[0]) // NEGLIGIBLE:
            attempt.request = RunLocal(request.command, request.original_schedule_ns + late)
            attempt.ready_ns += late
            self._set_alarm(attempt)
        self._waiting.append(attempt)
        self._changed()

    def cancel(self, run_id: str, seq: int) -> LocalResult | None:
        """Cancel a local activity. Return its result if no worker is executing an attempt of it."""
        attempt = self._known.get(run_id, {}).get(seq)
        if attempt is None:
            return None
        if attempt.phase is _Phase.EXECUTING:
            self._request_cancel(attempt)
            return None
        self._drop(attempt)
        return cancelled_at_once(seq)

    def forget(self, run_id: str) -> None:
        """Discard the local activities of a run, and cancel attempts that are executing."""
        for attempt in tuple(self._known.get(run_id, {}).values()):
            if attempt.phase is _Phase.EXECUTING:
                self._request_cancel(attempt)
                self._lose(attempt)
            self._drop(attempt)

    def has_attempts_of(self, run_id: str) -> bool:
        """Whether the worker is executing an attempt of this run, or will receive one after a commit or when a slot
        is free.
        """
        attempts = self._known.get(run_id, {}).values()
        return any(
            attempt.phase is _Phase.EXECUTING
            or (attempt.phase in (_Phase.STAGED, _Phase.WAITING) and not self._stopped)
            for attempt in attempts
        )

    @property
    def is_stopped(self) -> bool:
        """Whether no further attempts will start."""
        return self._stopped

    @staticmethod
    def is_local(token: bytes) -> bool:
        """Whether a token identifies an attempt of a local activity."""
        return token.startswith(_TOKEN)

    @property
    def has_out(self) -> bool:
        """Whether the worker is executing a local attempt, or could still receive one."""
        return bool(
            self._executing or self._forgotten or (self._staged and not self._stopped) or self.has_items
        )

    @property
    def has_items(self) -> bool:
        """Whether there is an item for the worker."""
        return bool(self._cancels or (self._waiting and self._may_start()))

    def next_item(self) -> ActivityItem | None:
        """Remove and return the next attempt or cancellation for the worker; None if there is none."""
        while self._cancels:
            cancel = self._cancels.popleft()
            if cancel.token in self._executing or cancel.token in self._forgotten:
                return cancel
        if not self._waiting or not self._may_start():
            return None
        return self._start(self._waiting.popleft())

    def complete(self, result: ActivityResult) -> None:
        """Record the result of an attempt."""
        self._forgotten.discard(result.token)
        attempt = self._executing.pop(result.token, None)
        if attempt is None:
            return
        match result:
            case ActivityOk():
                self._settle(attempt, Ending.COMPLETED, result=result.result)
            case AttemptCancelled() if attempt.told_to_cancel:
                self._settle(attempt, Ending.CANCELLED, failure=result.failure)
            case AttemptCancelled():
                self._fail(attempt, Ending.FAILED, shutdown_failure(result.failure))
            case AttemptFailed():
                self._fail(attempt, Ending.FAILED, result.failure)
            case ActivityDeferred():
                failure = Failure(
                    "a local activity cannot be completed asynchronously: return its result, or execute it as a normal "
                    "activity",
                    ApplicationFailure(type="NotSupported", non_retryable=True),
                )
                self._settle(attempt, Ending.FAILED, failure=failure)

    def stop(self, reason: str) -> None:
        """Ask the worker to stop all attempts in progress, and start no more."""
        self._stopped = True
        self._cancels.extend(ActivityCancel(token, reason) for token in self._executing)

    def close(self) -> None:
        """Prepare for the worker's shutdown. New requests are still carried out until the graceful shutdown timeout,
        unless it is 0.
        """
        self._closing = True
        self._stopped = self._config.graceful_shutdown <= 0

    def abandon(self) -> None:
        """Discard all attempts."""
        for attempts in self._known.values():
            for attempt in attempts.values():
                self._silence(attempt)
                attempt.phase = _Phase.OVER
        for table in (self._known, self._waiting, self._executing, self._forgotten, self._cancels):
            table.clear()

    def _may_start(self) -> bool:
        while self._waiting and self._waiting[0].phase is not _Phase.WAITING:
            self._waiting.popleft()  # the attempt was cancelled or has timed out
        limit = self._config.max_concurrent_local_activities
        return bool(self._waiting) and not self._stopped and len(self._executing) < limit

    def _start(self, attempt: _Attempt) -> ActivityTask:
        attempt.phase = _Phase.EXECUTING
        attempt.token = _TOKEN + str(next(self._numbers)).encode()
        attempt.started_ns = self._clock.now_ns()
        attempt.told_to_cancel = False
        self._executing[attempt.token] = attempt
        self._set_alarm(attempt)
        return self._task(attempt)

    def _task(self, attempt: _Attempt) -> ActivityTask:
        run, command = attempt.run, attempt.request.command
        total, _, timeout = local_activities.limits(command)
        return ActivityTask(
            token=attempt.token,
            activity_id=command.activity_id,
            activity_type=command.activity_type,
            spec=msgspec.structs.replace(
                command.spec,
                task_queue=self._config.task_queue,
                schedule_to_close_timeout=total,
                start_to_close_timeout=timeout or total,
                heartbeat_timeout=0.0,
                retry_policy=complete_retry(command.spec.retry_policy or RetryRule()),
            ),
            arguments=command.arguments,
            attempt=attempt.number,
            is_local=True,
            namespace=self._namespace,
            workflow_id=run.started.workflow_id,
            run_id=run.run_id,
            workflow_type=run.started.workflow_type,
            headers=command.headers,
            scheduled_time_ns=attempt.request.original_schedule_ns,
            current_attempt_scheduled_time_ns=attempt.ready_ns,
            started_time_ns=attempt.started_ns,
        )

    def _fail(self, attempt: _Attempt, ending: Ending, failure: Failure) -> None:
        command = attempt.request.command
        delay = local_activities.retry_delay(command.spec.retry_policy, attempt.number, failure)
        if delay is None or attempt.told_to_cancel:
            self._settle(attempt, ending, failure=failure)
        elif delay > local_activities.threshold(command):
            self._settle(attempt, ending, failure=failure, backoff_ns=to_ns(delay))
        else:
            attempt.phase = _Phase.PAUSING
            attempt.number += 1
            attempt.pause_ns = to_ns(delay)
            attempt.ready_ns = later(self._clock.now_ns(), attempt.pause_ns)
            attempt.started_ns = 0
            self._set_alarm(attempt)
            if self._closing and not self.has_attempts_of(attempt.run.run_id):
                self._stalled(attempt.run.run_id)

    def _settle(
        self,
        attempt: _Attempt,
        ending: Ending,
        *,
        result: Payload | None = None,
        failure: Failure | None = None,
        backoff_ns: int = 0,
    ) -> None:
        started = attempt.started_ns
        self._drop(attempt)
        self._ended(
            attempt.run.run_id,
            LocalResult(
                seq=attempt.request.command.seq,
                ending=ending,
                result=result,
                failure=failure,
                runtime_ns=self._clock.now_ns() - started if started else 0,
                attempt=attempt.number,
                backoff_ns=backoff_ns,
                original_schedule_ns=attempt.request.original_schedule_ns,
            ),
        )

    def _late(self, request: RunLocal, kind: TimeoutType, attempt: int) -> LocalResult:
        return LocalResult(
            seq=request.command.seq,
            ending=Ending.TIMED_OUT,
            failure=local_activities.timed_out(kind),
            attempt=attempt,
            original_schedule_ns=request.original_schedule_ns,
        )

    def _request_cancel(self, attempt: _Attempt) -> None:
        if not attempt.told_to_cancel:
            attempt.told_to_cancel = True
            self._cancels.append(ActivityCancel(attempt.token))
            self._changed()

    def _drop(self, attempt: _Attempt) -> None:
        self._silence(attempt)
        attempt.phase = _Phase.OVER
        run_id = attempt.run.run_id
        del self._known[run_id][attempt.request.command.seq]
        if not self._known[run_id]:
            del self._known[run_id]

    def _lose(self, attempt: _Attempt) -> None:
        """Ignore the result of an attempt that the worker is still executing."""
        del self._executing[attempt.token]
        self._forgotten.add(attempt.token)

    def _set_alarm(self, attempt: _Attempt) -> None:
        self._silence(attempt)
        when, _ = attempt.deadline
        if attempt.phase is _Phase.PAUSING:
            when = min(when, attempt.ready_ns) if when else attempt.ready_ns
        if when:
            attempt.alarm = self._clock.call_at(when, lambda: self._elapse(attempt))

    def realign(self) -> None:
        """Rearm all alarms after the clock has jumped. Attempts that started while the clock was ahead are treated as
        started now.
        """
        now = self._clock.now_ns()
        for attempt in [entry for attempts in self._known.values() for entry in attempts.values()]:
            request = attempt.request
            if request.original_schedule_ns > now:
                attempt.request = RunLocal(request.command, now)
            attempt.ready_ns = min(attempt.ready_ns, later(now, attempt.pause_ns))
            attempt.started_ns = min(attempt.started_ns, now)
            self._set_alarm(attempt)

    def _silence(self, attempt: _Attempt) -> None:
        if attempt.alarm is not None:
            attempt.alarm()
            attempt.alarm = None

    def _elapse(self, attempt: _Attempt) -> None:
        attempt.alarm = None
        now = self._clock.now_ns()
        when, kind = attempt.deadline
        if when and when <= now and attempt.phase is _Phase.STAGED:
            attempt.alarm = self._clock.call_at(now + LOOK_AGAIN, lambda: self._elapse(attempt))
        elif when and when <= now:
            self._time_out(attempt, kind)
        else:
            if attempt.phase is _Phase.PAUSING and attempt.ready_ns <= now:
                attempt.phase = _Phase.WAITING
                self._waiting.append(attempt)
            self._set_alarm(attempt)
        self._changed()

    def _time_out(self, attempt: _Attempt, kind: TimeoutType) -> None:
        failure = local_activities.timed_out(kind)
        if attempt.phase is _Phase.EXECUTING:
            self._lose(attempt)
            self._cancels.append(ActivityCancel(attempt.token, "TIMED_OUT"))
        if kind is TimeoutType.START_TO_CLOSE:
            self._fail(attempt, Ending.TIMED_OUT, failure)
        else:
            self._settle(attempt, Ending.TIMED_OUT, failure=failure)
