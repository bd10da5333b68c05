"""The state machine for the local activities of a run (`LocalActivities`), and the decisions on timeouts and retries.
Pure. The rules are Core's.

Must not know: where attempts are executed, handles, clocks, the engine. The input is commands, results and markers.
The output is events for the worker, requests for `local_attempts` to execute attempts, and markers for the history.

A replay executes nothing: the markers of its history are read ahead and contain the result of each local activity. A
local activity that has no marker at the end of the replay is executed. After a crash, it is therefore executed again.

The retry rules differ from a server's rules for remote activities: error type names are compared case-insensitively,
and a long backoff becomes a timer of the run.

Invariants:

- Each local activity ends once for its run.
- Each local activity that was executed leaves one marker. The markers are in the order in which the activities ended.
- A replay reports the results in the same order, and in the same activation of the same task.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

import msgspec

from hourglass._embedded.clock import later, to_ns
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.retries import backoff
from hourglass._evaluator.specs import ActivityCancellationType, RetryRule
from hourglass._history.events import LocalActivityMarkerRecorded, RecordLocalActivity
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    Failure,
    Payload,
    TimeoutFailure,
)
from hourglass.errors import RetryState, TimeoutType

TIMED_OUT = "Activity timed out"
"""The failure message of an attempt that timed out."""

_SECOND = 1_000_000_000


class Ending(Enum):
    """How a local activity ended."""

    COMPLETED = auto()
    FAILED = auto()
    TIMED_OUT = auto()
    CANCELLED = auto()


class LocalResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a local activity. If `backoff_ns` is set, the activity must be retried after that time."""

    seq: int
    ending: Ending
    result: Payload | None = None
    failure: Failure | None = None
    runtime_ns: int = 0
    attempt: int = 0
    backoff_ns: int = 0
    original_schedule_ns: int = 0


class RunLocal(msgspec.Struct, frozen=True):
    """A request to execute a local activity that was first scheduled at `original_schedule_ns`."""

    command: c.ScheduleLocalActivity
    original_schedule_ns: int


class CancelLocal(msgspec.Struct, frozen=True):
    """A request to cancel a local activity."""

    seq: int


LocalRequest: TypeAlias = RunLocal | CancelLocal


def cancelled_at_once(seq: int, attempt: int = 0, original_schedule_ns: int = 0) -> LocalResult:
    """Return the result of a local activity that is reported as cancelled immediately: no attempt was executing, or
    the run does not wait for it.
    """
    return LocalResult(
        seq=seq,
        ending=Ending.CANCELLED,
        failure=Failure("Activity cancelled", CanceledFailure()),
        attempt=attempt,
        original_schedule_ns=original_schedule_ns,
    )


class _State(Enum):
    EXPECTED = auto()  # the history may contain the result
    REQUESTED = auto()  # `local_attempts` must execute it
    MARKED = auto()  # the run was notified, and the marker is among the commands
    REPLAYED = auto()  # the run was notified from the marker, whose event comes later in the history


@dataclass(eq=False)
class _Local:
    command: c.ScheduleLocalActivity
    state: _State
    time_ns: int
    original_ns: int

    @property
    def waits(self) -> bool:
        """Whether a cancellation of the activity waits until its attempt has stopped."""
        return self.command.spec.cancellation_type is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


class LocalActivities:
    """The local activities of one run. `issued` contains the run's commands that have no event yet."""

    def __init__(self, issued: deque[c.Command], time_ns: int = 0, activation: int = 0) -> None:
        self.time_ns = time_ns
        self._issued = issued
        self.known: dict[int, _Local] = {}
        """The requested local activities by sequence number, until their markers are recorded."""
        self._wanted: dict[int, RunLocal] = {}
        self._cancels: list[CancelLocal] = []
        self._executing: set[int] = set()
        self.markers: list[LocalActivityMarkerRecorded] = []
        """The markers that a replay has read ahead and not yet reported."""
        self.activation = activation
        """The number of activations in the current task so far, not counting activations with only queries."""

    def is_taken(self, seq: int) -> bool:
        """Whether a sequence number is in use."""
        return seq in self.known

    def schedule(self, command: c.ScheduleLocalActivity, *, replaying: bool, now_ns: int) -> None:
        """Schedule a local activity."""
        original = command.original_schedule_time_ns or now_ns
        local = _Local(command, _State.EXPECTED, self.time_ns, original)
        self.known[command.seq] = local
        if not replaying:
            self._request(local)

    def cancel(self, seq: int) -> list[e.AnyEvent]:
        """Cancel a local activity. Return the events that result immediately."""
        local = self.known.get(seq)
        if local is None or local.state is _State.MARKED:
            return []
        if local.state is not _State.REQUESTED:
            return self._cancel_foretold(seq)
        if local.waits:
            was_requested = self._wanted.pop(seq, None)
            if was_requested is None:
                self._cancels.append(CancelLocal(seq))
                return []
            return self._notify(
                local, cancelled_at_once(seq, local.command.attempt, local.original_ns), local.time_ns
            )
        never_began = self._wanted.pop(seq, None) is not None
        if local.command.spec.cancellation_type is ActivityCancellationType.ABANDON:
            self._executing.discard(seq)
        elif not never_began:
            self._cancels.append(CancelLocal(seq))
        return self._notify(local, cancelled_at_once(seq, local.command.attempt, local.original_ns), 0)

    def _cancel_foretold(self, seq: int) -> list[e.AnyEvent]:
        for marker in self.markers:
            if marker.seq == seq and not self._is_for_later(marker):
                self.markers.remove(marker)
                return self._replay(marker)
        return []

    def _request(self, local: _Local) -> None:
        local.state = _State.REQUESTED
        self._wanted[local.command.seq] = RunLocal(local.command, local.original_ns)

    def go_live(self) -> None:
        """Request the execution of all local activities that have no marker, because the replay has ended."""
        for local in self.known.values():
            if local.state is _State.EXPECTED:
                self._request(local)

    @property
    def outstanding(self) -> int:
        """The number of local activities that are executing or about to be executed."""
        return len(self._executing) + len(self._wanted)

    def take_requests(self) -> list[LocalRequest]:
        """Remove and return the requests, cancellations first."""
        if not self._wanted and not self._cancels:
            return []
        requests: list[LocalRequest] = [*self._cancels, *self._wanted.values()]
        self._executing.update(self._wanted)
        self._wanted.clear()
        self._cancels.clear()
        return requests

    def resolve(self, result: LocalResult) -> list[e.AnyEvent]:
        """Record the result of an executed local activity. Return the events for the worker."""
        self._executing.discard(result.seq)
        local = self.known.get(result.seq)
        if local is None or local.state is not _State.REQUESTED:
            return []
        return self._notify(local, result, local.time_ns + result.runtime_ns)

    def foresee(self, marker: LocalActivityMarkerRecorded) -> None:
        """Add a marker that a replay has read ahead."""
        local = self.known.get(marker.seq)
        if local is None or local.state is _State.EXPECTED:
            self.markers.append(marker)

    def foreseen(self, *, all_of_them: bool) -> list[e.AnyEvent]:
        """Return the events of scheduled local activities whose markers were read ahead. With `all_of_them`, also
        include markers of later activations, because the replay has no other event that would lead to these
        activations.
        """
        events: list[e.AnyEvent] = []
        while self.markers and self.markers[0].seq in self.known:
            if not all_of_them and self._is_for_later(self.markers[0]):
                break
            events += self._replay(self.markers.pop(0))
        return events

    def is_replayed(self, marker: LocalActivityMarkerRecorded) -> bool | None:
        """Whether a marker was read ahead and already reported. None if the marker is unexpected."""
        local = self.known.get(marker.seq)
        if local is None or local.state in (_State.EXPECTED, _State.REQUESTED):
            return None
        return local.state is _State.REPLAYED

    def fits(self, marker: LocalActivityMarkerRecorded) -> bool:
        """Whether a marker matches the local activity that was requested with its sequence number."""
        local = self.known[marker.seq].command
        return (local.activity_id, local.activity_type) == (marker.activity_id, marker.activity_type)

    def command_of(self, seq: int) -> c.ScheduleLocalActivity:
        """Return the command with a sequence number."""
        return self.known[seq].command

    def recorded(self, seq: int) -> None:
        """Remove a local activity whose marker is in the history."""
        del self.known[seq]

    def _is_for_later(self, marker: LocalActivityMarkerRecorded) -> bool:
        return marker.activation_index > self.activation

    def _replay(self, marker: LocalActivityMarkerRecorded) -> list[e.AnyEvent]:
        local = self.known[marker.seq]
        if local.state is not _State.EXPECTED:
            return []
        local.state = _State.REPLAYED
        self.time_ns = max(self.time_ns, marker.complete_ns)
        return [_event(local.command, _result_of(marker))]

    def _notify(self, local: _Local, result: LocalResult, complete_ns: int) -> list[e.AnyEvent]:
        local.state = _State.MARKED
        self.time_ns = max(self.time_ns, complete_ns)
        command = local.command
        marker = LocalActivityMarkerRecorded(
            seq=command.seq,
            activity_id=command.activity_id,
            activity_type=command.activity_type,
            task_completed_event_id=0,
            attempt=result.attempt,
            complete_ns=complete_ns,
            backoff_ns=result.backoff_ns,
            original_schedule_ns=result.original_schedule_ns,
            activation_index=self.activation,
            result=result.result,
            failure=result.failure,
            summary=command.summary,
        )
        self._issued.append(RecordLocalActivity(marker, event_groups=command.event_groups))
        return [_event(command, result)]


def _result_of(marker: LocalActivityMarkerRecorded) -> LocalResult:
    return LocalResult(
        seq=marker.seq,
        ending=_ending(marker.failure),
        result=marker.result,
        failure=marker.failure,
        attempt=marker.attempt,
        backoff_ns=marker.backoff_ns,
        original_schedule_ns=marker.original_schedule_ns,
    )


def _ending(failure: Failure | None) -> Ending:
    """Return how a local activity ended, derived from the failure in its marker."""
    if failure is None:
        return Ending.COMPLETED
    cause = failure.cause.info if failure.cause is not None else None
    if isinstance(failure.info, CanceledFailure) or isinstance(cause, CanceledFailure):
        return Ending.CANCELLED
    if isinstance(failure.info, TimeoutFailure) and failure.message == TIMED_OUT:
        return Ending.TIMED_OUT
    return Ending.FAILED


def _event(command: c.ScheduleLocalActivity, result: LocalResult) -> e.AnyEvent:
    seq, failure = command.seq, result.failure or Failure("")
    if result.backoff_ns:
        return e.ActivityBackedOff(
            seq, result.attempt + 1, result.backoff_ns / _SECOND, result.original_schedule_ns
        )
    match result.ending:
        case Ending.COMPLETED:
            return e.ActivityCompleted(seq, result.result, is_local=True)
        case Ending.FAILED:
            return e.ActivityFailed(seq, failure, is_local=True)
        case Ending.TIMED_OUT:
            wrapped = _wrapped(command, failure, "Local Activity timed out", TimeoutFailure)
            return e.ActivityFailed(seq, wrapped, is_local=True)
        case Ending.CANCELLED:
            wrapped = _wrapped(command, failure, "Local Activity cancelled", CanceledFailure)
            return e.ActivityCancelled(seq, wrapped, is_local=True)


def _wrapped(command: c.ScheduleLocalActivity, failure: Failure, message: str, kind: type) -> Failure:
    if not isinstance(failure.info, kind):
        return failure
    info = ActivityFailure(
        activity_type=command.activity_type,
        activity_id=command.activity_id,
        retry_state=RetryState.CANCEL_REQUESTED,
    )
    return Failure(message, info, cause=failure)


DEFAULT_THRESHOLD = 60.0
"""The backoff in seconds above which a retry becomes a timer, unless the activity sets another threshold."""

HEARTBEAT_FRACTION = 0.8
"""The fraction of the task timeout after which a resting task is answered and the next task is requested."""


def timed_out(kind: TimeoutType) -> Failure:
    """Return the failure of a local activity that has timed out."""
    return Failure(TIMED_OUT, TimeoutFailure(kind))


def limits(command: c.ScheduleLocalActivity) -> tuple[float, float, float]:
    """Return the schedule-to-close, schedule-to-start and start-to-close timeouts by Core's rules; 0 means no timeout."""
    spec = command.spec
    total = spec.schedule_to_close_timeout
    wait, attempt = spec.schedule_to_start_timeout, spec.start_to_close_timeout
    if total:
        wait, attempt = min(wait, total), min(attempt, total)
    return total, wait, attempt


def deadline(
    command: c.ScheduleLocalActivity, original_ns: int, ready_ns: int, started_ns: int
) -> tuple[int, TimeoutType]:
    """Return the next deadline of an attempt and the kind of timeout; 0 means no deadline. The attempt may start at
    `ready_ns`. It started at `started_ns`, or has not started if that is 0.
    """
    total, wait, attempt = limits(command)
    candidates = (
        (later(original_ns, to_ns(total)), TimeoutType.SCHEDULE_TO_CLOSE)
        if total
        else (0, TimeoutType.UNSPECIFIED)
    )
    narrow = (0, TimeoutType.UNSPECIFIED)
    if started_ns and attempt:
        narrow = (later(started_ns, to_ns(attempt)), TimeoutType.START_TO_CLOSE)
    elif not started_ns and wait:
        narrow = (later(ready_ns, to_ns(wait)), TimeoutType.SCHEDULE_TO_START)
    if not candidates[0]:
        return narrow
    return narrow if narrow[0] and narrow[0] < candidates[0] else candidates


def retry_delay(rule: RetryRule | None, attempt: int, failure: Failure) -> float | None:
    """Return the backoff in seconds before the next attempt; None if the activity is not retried."""
    rule = rule or RetryRule()
    if rule.maximum_attempts and attempt >= rule.maximum_attempts:
        return None
    info = failure.info if isinstance(failure.info, ApplicationFailure) else None
    if info is not None and info.non_retryable:
        return None
    name = info.type.lower() if info is not None else ""
    if any(name == error_name.lower() for error_name in rule.non_retryable_error_types):
        return None
    if info is not None and info.next_retry_delay is not None:
        return info.next_retry_delay
    return backoff(rule, attempt)


def threshold(command: c.ScheduleLocalActivity) -> float:
    """Return the backoff in seconds above which a retry becomes a timer."""
    return command.spec.local_retry_threshold or DEFAULT_THRESHOLD
