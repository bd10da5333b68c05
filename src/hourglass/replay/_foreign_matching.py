"""What a run asked for in one workflow task, against what its history says that it asked for there. Pure.

SDKs differ in the order in which they run what became ready at once, so that the order within a task does not count
here: each event takes the command that fits it best. All else does: the task, the kind, the name, the id where it was
chosen, and (reported apart) arguments, durations and results.

What fits without its counterpart: the end of a timer, which no SDK of the first years asked for where a wait with a
limit was over; and a timer that was taken back in the task in which it was asked for.

Local activities are held against the markers in which the history says how they ended (`ForeignLocalActivities`, which must
not know activations, tasks, other commands). SDKs number local activities each in its own way, but all in the order
in which they are asked for: of those of one type the lowest number that has not ended is that of the oldest. A
workflow's `SideEffect` has no counterpart in Hourglass; where it was written down, a local activity that has no
marker of its own takes its value.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hourglass._embedded.activations.command_matching import COMMAND_OF
from hourglass._embedded.activations.outcomes import Outcomes
from hourglass._embedded.transitions.run import RequestCancelChild
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.words import is_made_up
from hourglass._history import events as h
from hourglass.converter import ActivityFailure, CanceledFailure, Failure, Payload
from hourglass.errors import RetryState
from hourglass.replay._comparison import same_payloads
from hourglass.replay._foreign_markers import EffectMark, LocalMark, Mark

# --- local activities -----------------------------------------------------------------------------


@dataclass
class ForeignLocalActivities:
    """The local activities that a run waits for, and the marks of the task in hand that have not been told."""

    waiting: list[c.ScheduleLocalActivity] = field(default_factory=list)
    marks: list[LocalMark | EffectMark] = field(default_factory=list)
    time_ns: int = 0
    _turns: dict[int, Any] = field(default_factory=dict)
    _numbers: dict[str, list[int]] = field(default_factory=dict)
    _cancelled_numbers: dict[str, list[int]] = field(default_factory=dict)
    _cancelled: list[str] = field(default_factory=list)
    _named: dict[str, Payload | None] = field(default_factory=dict)
    _effects: dict[str, str] = field(default_factory=dict)
    _calls: dict[str, int] = field(default_factory=dict)
    changed: list[tuple[LocalMark, c.ScheduleLocalActivity]] = field(default_factory=list)
    """Those that were asked for with other arguments than their marks say."""

    def prepare(self, marks: Iterable[Mark]) -> None:
        """These are the marks of the whole history."""
        for mark in marks:
            if isinstance(mark, LocalMark) and mark.activity_id.isdigit():
                for table in (
                    (self._numbers, self._cancelled_numbers) if _is_cancelled(mark) else (self._numbers,)
                ):
                    insort(table.setdefault(mark.activity_type, []), int(mark.activity_id))

    def begin_task(self, marks: Iterable[Mark]) -> None:
        """Another task, with its marks."""
        self.marks = [mark for mark in marks if isinstance(mark, (LocalMark, EffectMark))]

    def unmatched_mark(self) -> LocalMark | None:
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

    def schedule(self, command: c.ScheduleLocalActivity, turn: Any) -> None:
        """The run asks for one; `turn` says when the other SDK would have, compared with the others."""
        self._turns[command.seq] = turn
        insort(self.waiting, command, key=lambda scheduled: self._turns[scheduled.seq])

    def cancel(self, seq: int) -> list[e.AnyEvent]:
        """The run asks to cancel one; gives what it is told at once."""
        for command in self.waiting:
            if command.seq == seq:
                self.waiting.remove(command)
                cause = Failure("Activity cancelled", CanceledFailure())
                wrapped = _wrapped(command, cause, RetryState.CANCEL_REQUESTED, "Local Activity cancelled")
                self._cancelled.append(command.activity_type)
                self._drop_cancelled_number(command.activity_type)
                return [e.ActivityCancelled(seq, wrapped, is_local=True)]
        return []

    def _drop_cancelled_number(self, activity_type: str) -> None:
        """One was cancelled: the number of such a one is no longer among those that are waited for."""
        doomed = self._cancelled_numbers.get(activity_type)
        if doomed:
            self._drop_number(activity_type, doomed[0])

    def _drop_number(self, activity_type: str, number: int) -> None:
        for table in (self._numbers, self._cancelled_numbers):
            numbers = table.get(activity_type, [])
            if number in numbers:
                numbers.remove(number)

    def next_end(self) -> list[e.AnyEvent]:
        """What the next mark says of one that the run waits for: one at a time, as they ended."""
        # Those that the run has cancelled have been told already: their marks come last.
        for mark in sorted(self.marks, key=lambda mark: isinstance(mark, LocalMark) and _is_cancelled(mark)):
            if isinstance(mark, LocalMark) and self._was_cancelled(mark):
                self._forget(mark)
                continue
            command = self._command_for(mark)
            if command is not None:
                self._forget(mark)
                self.waiting.remove(command)
                return [self._event_of(command, mark)]
        return self._unchanged_effect()

    def _forget(self, mark: LocalMark | EffectMark) -> None:
        self.marks.remove(mark)
        if isinstance(mark, LocalMark) and mark.activity_id.isdigit():
            self._drop_number(mark.activity_type, int(mark.activity_id))

    def _command_for(self, mark: LocalMark | EffectMark) -> c.ScheduleLocalActivity | None:
        if isinstance(mark, EffectMark):
            marked_types = {entry.activity_type for entry in self.marks if isinstance(entry, LocalMark)}
            unmarked = [command for command in self.waiting if command.activity_type not in marked_types]
            unmarked.sort(key=lambda command: command.activity_type != mark.name)
            return next(
                (command for command in unmarked if self._matches_call(command.activity_type, mark)), None
            )
        fitting = [
            command
            for command in self.waiting
            if not mark.activity_type or command.activity_type == mark.activity_type
        ]
        if len(fitting) > 1 and mark.activity_id.isdigit():
            before = bisect_left(self._numbers[mark.activity_type], int(mark.activity_id))
            return fitting[min(before, len(fitting) - 1)]
        if mark.arguments is not None:  # Java writes them down
            arguments = mark.arguments
            fitting.sort(key=lambda command: not same_payloads(arguments, command.arguments))
        return fitting[0] if fitting else None

    def _matches_call(self, activity_type: str, mark: EffectMark) -> bool:
        """Whether it is for this call that a value was written down: Go counts the calls of each name."""
        name = self._effects.get(activity_type)
        if name is None:
            return True
        return name == mark.name and mark.call <= self._calls[activity_type] + 1

    def _unchanged_effect(self) -> list[e.AnyEvent]:
        """A `MutableSideEffect` is written down when its value changes: without a mark it is as it was."""
        for command in self.waiting:
            if command.activity_type in self._named:
                self.waiting.remove(command)
                self._calls[command.activity_type] += 1
                return [e.ActivityCompleted(command.seq, self._named[command.activity_type], is_local=True)]
        return []

    def _event_of(self, command: c.ScheduleLocalActivity, mark: LocalMark | EffectMark) -> e.AnyEvent:
        seq = command.seq
        if isinstance(mark, EffectMark):
            if mark.name:
                kind = command.activity_type
                self._named[kind] = mark.value
                self._effects[kind] = mark.name
                self._calls[kind] = max(mark.call, self._calls.get(kind, 0) + 1)
            return e.ActivityCompleted(seq, mark.value, is_local=True)
        self.time_ns = max(self.time_ns, mark.time_ns)
        if mark.arguments is not None and not same_payloads(mark.arguments, command.arguments):
            self.changed.append((mark, command))
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


# --- commands and events --------------------------------------------------------------------------


_TOLERANCE_NS = 2_000_000


class Pairing(msgspec.Struct, frozen=True):
    """Which command led to which event, and what is left over on either side."""

    pairs: tuple[tuple[h.HistoryEvent, c.Command], ...] = ()
    missing: tuple[h.HistoryEvent, ...] = ()
    surplus: tuple[c.Command, ...] = ()
    is_ambiguous: bool = False
    """Whether another order of the commands would have given other pairs."""


def pair_up(
    events: Iterable[h.HistoryEvent],
    commands: Iterable[c.Command],
    outcomes: Outcomes,
    names: Mapping[str, str],
    recorded: Mapping[int, Any],
) -> Pairing:
    """Give each event the command that fits it best.

    `names` are the ids of children, from ours to the history's; `recorded` says by event with which arguments things were
    asked for, decoded.
    """
    open_events = list(events)
    remaining = list(commands)
    pairs: list[tuple[h.HistoryEvent, c.Command]] = []
    ambiguous = False
    for exact in (True, False):
        for event in list(open_events):
            summary = recorded.get(event.id)
            view = _View(event.attributes, summary.payloads if summary is not None else (), names, exact)
            fit = next((command for command in remaining if _fits(command, view, outcomes)), None)
            if fit is not None:
                remaining = [command for command in remaining if command is not fit]
                ambiguous = ambiguous or any(_indistinguishable(fit, command) for command in remaining)
                open_events.remove(event)
                pairs.append((event, fit))
    pairs.sort(key=lambda pair: pair[0].id)
    return Pairing(
        tuple(pairs),
        tuple(event for event in open_events if not isinstance(event.attributes, h.TimerCanceled)),
        tuple(command for command in remaining if not isinstance(command, c.CancelTimer)),
        ambiguous,
    )


def _indistinguishable(first: c.Command, second: c.Command) -> bool:
    """Whether nothing in a history would tell which of the two is which."""
    match first, second:
        case c.StartTimer(), c.StartTimer():
            return first.duration_ns == second.duration_ns
        case c.ScheduleActivity(), c.ScheduleActivity():
            return first.activity_type == second.activity_type and same_payloads(
                first.arguments, second.arguments
            )
        case c.StartChildWorkflow(), c.StartChildWorkflow():
            return first.workflow_type == second.workflow_type and same_payloads(
                first.arguments, second.arguments
            )
        case _:
            return False


class _View(msgspec.Struct, frozen=True):
    """An event as a command is held against it: at first `exact`, arguments and all."""

    attributes: Any
    payloads: Payloads
    names: Mapping[str, str]
    exact: bool

    def has(self, arguments: Payloads) -> bool:
        """Whether something was asked for with these arguments, as far as that counts."""
        return not self.exact or same_payloads(self.payloads, arguments)


def _fits(command: c.Command, view: _View, outcomes: Outcomes) -> bool:
    attributes, exact = view.attributes, view.exact
    if not isinstance(command, COMMAND_OF[type(attributes)]):
        return False
    match command:
        case c.ScheduleActivity():
            matches = command.activity_type == attributes.activity_type and view.has(command.arguments)
            return matches and _has_id(command, attributes.activity_id)
        case c.StartTimer():
            return not exact or abs(command.duration_ns - attributes.duration_ns) <= _TOLERANCE_NS
        case c.CancelTimer():
            return bool(outcomes.link_of(command) == attributes.started_event_id)
        case c.RequestCancelActivity() | c.CancelNexusOperation():
            return bool(outcomes.link_of(command) == attributes.scheduled_event_id)
        case c.StartChildWorkflow():
            return _fits_child(command, view)
        case c.SignalExternalWorkflow():
            matches = command.signal_name == attributes.signal_name and view.has(command.arguments)
            return matches and _reaches(command.workflow_id, view)
        case c.RequestCancelExternal() | RequestCancelChild():
            return _reaches(command.workflow_id, view)
        case c.AcceptUpdate() | c.CompleteUpdate() | c.RejectUpdate():
            return bool(command.protocol_instance_id == attributes.update_id)
        case c.UpsertSearchAttributes():
            return not exact or set(command.search_attributes) == set(attributes.search_attributes)
        case c.UpsertMemo():
            return not exact or set(command.memo) == set(attributes.memo)
        case _:
            return True


def _fits_child(command: c.StartChildWorkflow, view: _View) -> bool:
    if command.workflow_type != view.attributes.workflow_type:
        return False
    if command.workflow_id == view.attributes.workflow_id:
        return True
    # An id that was not chosen comes from the run's randomness, which is another in each language.
    is_generated = is_made_up(command.workflow_id) and is_made_up(view.attributes.workflow_id)
    return is_generated and view.has(command.arguments)


def _has_id(command: c.ScheduleActivity, recorded: str) -> bool:
    """Whether an activity goes by the id on record: one that was chosen, or one that was chosen neither here nor there."""
    if command.activity_id == recorded:
        return True
    is_default = command.activity_id == str(command.seq)
    return is_default and (recorded.isdigit() or is_made_up(recorded))


def _reaches(workflow_id: str, view: _View) -> bool:
    return bool(view.names.get(workflow_id, workflow_id) == view.attributes.workflow_id)
