"""Local activities of a run, against the markers in which its history says how they ended.

Must not know: activations, tasks, other commands. SDKs number local activities each in its own way: a marker belongs to the
first that was asked for of its type, unless its id says which it is. A workflow's `SideEffect` has no counterpart in
Hourglass; where it was written down, a local activity that has no marker of its own takes its value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hourglass._engine import commands as c
from hourglass._engine import events as e
from hourglass.converter import ActivityFailure, CanceledFailure, Failure, Payload
from hourglass.errors import RetryState
from hourglass.replay._comparison import same_payloads
from hourglass.replay._foreign_markers import EffectMark, LocalMark, Mark


@dataclass
class LocalActivities:
    """The local activities that a run waits for, and the marks of the task in hand that have not been told."""

    waiting: list[c.ScheduleLocalActivity] = field(default_factory=list)
    marks: list[LocalMark | EffectMark] = field(default_factory=list)
    time_ns: int = 0
    _asked: int = 0
    _order: dict[int, int] = field(default_factory=dict)
    _cancelled: list[str] = field(default_factory=list)
    _named: dict[str, Payload | None] = field(default_factory=dict)

    def begin_task(self, marks: Iterable[Mark]) -> None:
        """Another task, with its marks."""
        self.marks = [mark for mark in marks if isinstance(mark, (LocalMark, EffectMark))]

    def untold(self) -> LocalMark | None:
        """A mark of the task in hand that is of nothing that the run asked for."""
        for mark in self.marks:
            if isinstance(mark, LocalMark) and not self._was_cancelled(mark):
                return mark
        return None

    def _was_cancelled(self, mark: LocalMark) -> bool:
        """Whether a mark says no more than that one was cancelled, which the run was told when it asked for it."""
        if not _is_cancelled(mark) or mark.activity_type not in self._cancelled:
            return False
        self._cancelled.remove(mark.activity_type)
        return True

    def schedule(self, command: c.ScheduleLocalActivity) -> None:
        """The run asks for one."""
        self.waiting.append(command)
        if command.attempt <= 1:
            self._asked += 1
            self._order[command.seq] = self._asked

    def cancel(self, seq: int) -> list[e.AnyEvent]:
        """The run asks to cancel one; gives what it is told at once."""
        for command in self.waiting:
            if command.seq == seq:
                self.waiting.remove(command)
                cause = Failure("Activity cancelled", CanceledFailure())
                wrapped = _wrapped(command, cause, RetryState.CANCEL_REQUESTED, "Local Activity cancelled")
                self._cancelled.append(command.activity_type)
                return [e.ActivityCancelled(seq, wrapped, is_local=True)]
        return []

    def next_end(self) -> list[e.AnyEvent]:
        """What the next mark says of one that the run waits for: one at a time, as they ended."""
        for mark in self.marks:
            command = self._of(mark)
            if command is not None:
                self.marks.remove(mark)
                self.waiting.remove(command)
                return [self._told(command, mark)]
        return self._repeated()

    def _of(self, mark: LocalMark | EffectMark) -> c.ScheduleLocalActivity | None:
        if isinstance(mark, EffectMark):
            own = {each.activity_type for each in self.marks if isinstance(each, LocalMark)}
            return next((each for each in self.waiting if each.activity_type not in own), None)
        fitting = [
            each
            for each in self.waiting
            if not mark.activity_type or each.activity_type == mark.activity_type
        ]
        return min(fitting, key=lambda each: self._distance(each, mark)) if fitting else None

    def _distance(self, command: c.ScheduleLocalActivity, mark: LocalMark) -> tuple[bool, bool]:
        """How badly a mark fits: Go numbers local activities in order, Java writes their arguments down."""
        other = mark.activity_id.isdigit() and int(mark.activity_id) != self._order.get(command.seq)
        changed = mark.arguments is not None and not same_payloads(mark.arguments, command.arguments)
        return other, changed

    def _repeated(self) -> list[e.AnyEvent]:
        """A `MutableSideEffect` is written down when its value changes: without a mark it is as it was."""
        for command in self.waiting:
            if command.activity_type in self._named:
                self.waiting.remove(command)
                return [e.ActivityCompleted(command.seq, self._named[command.activity_type], is_local=True)]
        return []

    def _told(self, command: c.ScheduleLocalActivity, mark: LocalMark | EffectMark) -> e.AnyEvent:
        seq = command.seq
        if isinstance(mark, EffectMark):
            if mark.name:
                self._named[command.activity_type] = mark.value
            return e.ActivityCompleted(seq, mark.value, is_local=True)
        self.time_ns = max(self.time_ns, mark.time_ns)
        if mark.backoff:
            original = mark.original_schedule_ns or command.original_schedule_time_ns
            return e.ActivityBackedOff(seq, mark.attempt + 1, mark.backoff, original)
        if mark.failure is None:
            return e.ActivityCompleted(seq, mark.result, is_local=True)
        if _is_cancelled(mark):
            wrapped = _wrapped(command, mark.failure, RetryState.CANCEL_REQUESTED, "Local Activity cancelled")
            return e.ActivityCancelled(seq, wrapped, is_local=True)
        state = RetryState.MAXIMUM_ATTEMPTS_REACHED
        return e.ActivityFailed(
            seq, _wrapped(command, mark.failure, state, "Local Activity task failed"), is_local=True
        )


def _is_cancelled(mark: LocalMark) -> bool:
    failure = mark.failure
    if failure is None:
        return False
    cause = failure.cause.info if failure.cause is not None else None
    return isinstance(failure.info, CanceledFailure) or isinstance(cause, CanceledFailure)


def _wrapped(command: c.ScheduleLocalActivity, failure: Failure, state: RetryState, message: str) -> Failure:
    if isinstance(failure.info, ActivityFailure):
        return failure
    info = ActivityFailure(
        activity_type=command.activity_type, activity_id=command.activity_id, retry_state=state
    )
    return Failure(message, info, cause=failure)
