"""What became of the local activities that a run asked for: Core's state machine for them (`LocalActivities`), and
the decisions about one: its limits, and whether a failed attempt is tried again. Pure.

Must not know: where attempts are made, handles, clocks, the engine. Commands, results and markers come in; events for
the worker come out, beside requests for `local_attempts`, which makes attempts, and markers for the history.

While a run is replayed nothing is executed: its markers tell, ahead of time, how each local activity ended. One that
has no marker when the replay ends is executed: a crash makes them run again.

The rules of retries are Core's, which differ from a server's for remote activities: names of errors are compared
without regard to case, and a long pause is left to the run, which makes a timer of it.

Invariants: each local activity is told of once; each that was executed leaves one marker, in the order in which they
were told; a replay tells them in that order, and in the activation of their task that they were told in before.
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
"""The message of a failure that says that an attempt took too long."""

_SECOND = 1_000_000_000


class Ending(Enum):
    """How a local activity ended."""

    COMPLETED = auto()
    FAILED = auto()
    TIMED_OUT = auto()
    CANCELLED = auto()


class LocalResult(msgspec.Struct, frozen=True, kw_only=True):
    """A local activity ended; with a `backoff_ns` it is to be tried again after so long."""

    seq: int
    ending: Ending
    result: Payload | None = None
    failure: Failure | None = None
    runtime_ns: int = 0
    attempt: int = 0
    backoff_ns: int = 0
    original_schedule_ns: int = 0


class RunLocal(msgspec.Struct, frozen=True):
    """Make attempts of this local activity, which was first asked for at this time."""

    command: c.ScheduleLocalActivity
    original_schedule_ns: int


class CancelLocal(msgspec.Struct, frozen=True):
    """Cancel what is done for this local activity, if anything is."""

    seq: int


LocalRequest: TypeAlias = RunLocal | CancelLocal


def cancelled_at_once(seq: int, attempt: int = 0, original_schedule_ns: int = 0) -> LocalResult:
    """The end of a local activity that is cancelled before an attempt begins, or without waiting for the one under
    way.
    """
    return LocalResult(
        seq=seq,
        ending=Ending.CANCELLED,
        failure=Failure("Activity cancelled", CanceledFailure()),
        attempt=attempt,
        original_schedule_ns=original_schedule_ns,
    )


class _State(Enum):
    FORETOLD = auto()  # the history may tell how it ended
    ASKED = auto()  # `local_attempts` is to make attempts
    MARKED = auto()  # told; its marker is among the commands
    REPLAYED = auto()  # told, from its marker, which comes later


@dataclass(eq=False)
class _Local:
    command: c.ScheduleLocalActivity
    state: _State
    time_ns: int
    original_ns: int

    @property
    def waits(self) -> bool:
        """Whether cancelling it means to wait until it has stopped."""
        return self.command.spec.cancellation_type is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


class LocalActivities:
    """The local activities of one run; `issued` are the run's commands that no event has answered yet."""

    def __init__(self, issued: deque[c.Command], time_ns: int = 0, activation: int = 0) -> None:
        self.time_ns = time_ns
        self._issued = issued
        self.known: dict[int, _Local] = {}
        """Those that were asked for, by number, until they are recorded."""
        self._wanted: dict[int, RunLocal] = {}
        self._cancels: list[CancelLocal] = []
        self._executing: set[int] = set()
        self.markers: list[LocalActivityMarkerRecorded] = []
        """The markers ahead, while replaying."""
        self.activation = activation
        """How many activations, not of queries alone, the worker was given in the task that is walked over."""

    # --- commands -------------------------------------------------------------------------------------------

    def is_taken(self, seq: int) -> bool:
        """Whether a number is in use."""
        return seq in self.known

    def schedule(self, command: c.ScheduleLocalActivity, *, replaying: bool, now_ns: int) -> None:
        """The worker asks for a local activity."""
        original = command.original_schedule_time_ns or now_ns
        known = _Local(command, _State.FORETOLD, self.time_ns, original)
        self.known[command.seq] = known
        if not replaying:
            self._ask(known)

    def cancel(self, seq: int) -> list[e.AnyEvent]:
        """The worker asks to cancel one; gives what it may be told at once."""
        known = self.known.get(seq)
        if known is None or known.state is _State.MARKED:
            return []
        if known.state is not _State.ASKED:
            return self._cancel_foretold(seq)
        if known.waits:
            asked = self._wanted.pop(seq, None)
            if asked is None:
                self._cancels.append(CancelLocal(seq))
                return []
            return self._tell(
                known, cancelled_at_once(seq, known.command.attempt, known.original_ns), known.time_ns
            )
        never_began = self._wanted.pop(seq, None) is not None
        if known.command.spec.cancellation_type is ActivityCancellationType.ABANDON:
            self._executing.discard(seq)
        elif not never_began:
            self._cancels.append(CancelLocal(seq))
        return self._tell(known, cancelled_at_once(seq, known.command.attempt, known.original_ns), 0)

    def _cancel_foretold(self, seq: int) -> list[e.AnyEvent]:
        for marker in self.markers:
            if marker.seq == seq and not self._is_for_later(marker):
                self.markers.remove(marker)
                return self._replay(marker)
        return []

    def _ask(self, known: _Local) -> None:
        known.state = _State.ASKED
        self._wanted[known.command.seq] = RunLocal(known.command, known.original_ns)

    # --- tasks and activations ------------------------------------------------------------------------------

    def go_live(self) -> None:
        """The replay is over: what has no marker is to be executed."""
        for known in self.known.values():
            if known.state is _State.FORETOLD:
                self._ask(known)

    @property
    def outstanding(self) -> int:
        """How many are to be executed, or are being executed."""
        return len(self._executing) + len(self._wanted)

    def take_requests(self) -> list[LocalRequest]:
        """What is to be done for the run, cancellations first."""
        if not self._wanted and not self._cancels:
            return []
        requests: list[LocalRequest] = [*self._cancels, *self._wanted.values()]
        self._executing.update(self._wanted)
        self._wanted.clear()
        self._cancels.clear()
        return requests

    def resolve(self, result: LocalResult) -> list[e.AnyEvent]:
        """An execution ended; gives what the worker is told, if that is still of interest."""
        self._executing.discard(result.seq)
        known = self.known.get(result.seq)
        if known is None or known.state is not _State.ASKED:
            return []
        return self._tell(known, result, known.time_ns + result.runtime_ns)

    # --- markers --------------------------------------------------------------------------------------------

    def foresee(self, marker: LocalActivityMarkerRecorded) -> None:
        """A replay sees a marker ahead."""
        known = self.known.get(marker.seq)
        if known is None or known.state is _State.FORETOLD:
            self.markers.append(marker)

    def foreseen(self, *, all_of_them: bool) -> list[e.AnyEvent]:
        """What the markers ahead say of local activities that were asked for; of those that were told in a later
        activation only if there will be none.
        """
        told: list[e.AnyEvent] = []
        while self.markers and self.markers[0].seq in self.known:
            if not all_of_them and self._is_for_later(self.markers[0]):
                break
            told += self._replay(self.markers.pop(0))
        return told

    def is_replayed(self, marker: LocalActivityMarkerRecorded) -> bool | None:
        """Whether a marker was told from look-ahead; None if it should not be there."""
        known = self.known.get(marker.seq)
        if known is None or known.state in (_State.FORETOLD, _State.ASKED):
            return None
        return known.state is _State.REPLAYED

    def fits(self, marker: LocalActivityMarkerRecorded) -> bool:
        """Whether a marker is of the activity that was asked for under its number."""
        known = self.known[marker.seq].command
        return (known.activity_id, known.activity_type) == (marker.activity_id, marker.activity_type)

    def command_of(self, seq: int) -> c.ScheduleLocalActivity:
        """What was asked for under a number."""
        return self.known[seq].command

    def recorded(self, seq: int) -> None:
        """The marker of a local activity stands in the history: that is its end."""
        del self.known[seq]

    def _is_for_later(self, marker: LocalActivityMarkerRecorded) -> bool:
        return marker.activation_index > self.activation

    def _replay(self, marker: LocalActivityMarkerRecorded) -> list[e.AnyEvent]:
        known = self.known[marker.seq]
        if known.state is not _State.FORETOLD:
            return []
        known.state = _State.REPLAYED
        self.time_ns = max(self.time_ns, marker.complete_ns)
        return [_event(known.command, _result_of(marker))]

    def _tell(self, known: _Local, result: LocalResult, complete_ns: int) -> list[e.AnyEvent]:
        known.state = _State.MARKED
        self.time_ns = max(self.time_ns, complete_ns)
        command = known.command
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
    """How one ended that has this failure in its marker, which does not say it."""
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


# --- limits and retries of one --------------------------------------------------------------------------------


DEFAULT_THRESHOLD = 60.0
"""Longer pauses than this between two attempts become timers, unless the activity says otherwise."""

HEARTBEAT_FRACTION = 0.8
"""The part of a task's time after which a task that waits for local activities is answered and asked for again."""


def timed_out(kind: TimeoutType) -> Failure:
    """The failure of a local activity that took too long."""
    return Failure(TIMED_OUT, TimeoutFailure(kind))


def limits(command: c.ScheduleLocalActivity) -> tuple[float, float, float]:
    """Schedule-to-close, schedule-to-start and start-to-close, as Core understands them; 0: no limit."""
    spec = command.spec
    whole = spec.schedule_to_close_timeout
    wait, attempt = spec.schedule_to_start_timeout, spec.start_to_close_timeout
    if whole:
        wait, attempt = min(wait, whole), min(attempt, whole)
    return whole, wait, attempt


def deadline(
    command: c.ScheduleLocalActivity, original_ns: int, ready_ns: int, started_ns: int
) -> tuple[int, TimeoutType]:
    """When it times out next, and how; 0: never. `ready_ns` is when the attempt may begin, `started_ns` when it did."""
    whole, wait, attempt = limits(command)
    found = (
        (later(original_ns, to_ns(whole)), TimeoutType.SCHEDULE_TO_CLOSE)
        if whole
        else (0, TimeoutType.UNSPECIFIED)
    )
    narrow = (0, TimeoutType.UNSPECIFIED)
    if started_ns and attempt:
        narrow = (later(started_ns, to_ns(attempt)), TimeoutType.START_TO_CLOSE)
    elif not started_ns and wait:
        narrow = (later(ready_ns, to_ns(wait)), TimeoutType.SCHEDULE_TO_START)
    if not found[0]:
        return narrow
    return narrow if narrow[0] and narrow[0] < found[0] else found


def retry_delay(rule: RetryRule | None, attempt: int, failure: Failure) -> float | None:
    """Seconds until the attempt after this one; None if there is none."""
    rule = rule or RetryRule()
    if rule.maximum_attempts and attempt >= rule.maximum_attempts:
        return None
    info = failure.info if isinstance(failure.info, ApplicationFailure) else None
    if info is not None and info.non_retryable:
        return None
    name = info.type.lower() if info is not None else ""
    if any(name == each.lower() for each in rule.non_retryable_error_types):
        return None
    if info is not None and info.next_retry_delay is not None:
        return info.next_retry_delay
    return backoff(rule, attempt)


def threshold(command: c.ScheduleLocalActivity) -> float:
    """How long a pause may be without becoming a timer."""
    return command.spec.local_retry_threshold or DEFAULT_THRESHOLD
