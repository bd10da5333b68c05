"""Matching of the commands of one workflow task with the events of a history of another SDK. Pure.

SDKs differ in the order in which they run fibers that become ready at the same time, so the order within a
task is ignored: each event is paired with the command that fits it best. All other properties must match: the
task, the kind, the name, the id if the author chose it, and (reported separately) arguments, durations and
results.

Two commands need no counterpart. One is the cancellation of a timer, because early SDK versions omit it when a wait with a
timeout ends. The other is a timer that is started and cancelled in the same task.

Local activities are matched with the markers that record their results (`ForeignLocalActivities`; must not know:
activations, tasks, or other commands). Each SDK numbers local activities in its own way, but always in the order of
scheduling. Among local activities of the same type, the lowest number without a result belongs to the oldest activity.
Hourglass has no counterpart of a workflow's `SideEffect`. A local activity without a marker of its own receives the recorded
value instead.
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
from hourglass._evaluator.words import is_generated_id
from hourglass._history import events as h
from hourglass.converter import ActivityFailure, CanceledFailure, Failure, Payload
from hourglass.errors import RetryState
from hourglass.replay._comparison import same_payloads
from hourglass.replay._foreign_markers import EffectMark, LocalMark, Mark


@dataclass
class ForeignLocalActivities:
    """The local activities that a run waits for, and the undelivered marks of the current task."""

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
    """Marks with recorded arguments that differ from the arguments that the code passes now."""

    def prepare(self, marks: Iterable[Mark]) -> None:
        """Register the marks of the whole history, before its first task."""
        for mark in marks:
            if isinstance(mark, LocalMark) and mark.activity_id.isdigit():
                for table in (
                    (self._numbers, self._cancelled_numbers) if _is_cancelled(mark) else (self._numbers,)
                ):
                    insort(table.setdefault(mark.activity_type, []), int(mark.activity_id))

    def begin_task(self, marks: Iterable[Mark]) -> None:
        """Start the next task, with its marks."""
        self.marks = [mark for mark in marks if isinstance(mark, (LocalMark, EffectMark))]

    def unmatched_mark(self) -> LocalMark | None:
        """Return a mark of the current task that belongs to no local activity of the run, or None."""
        for mark in self.marks:
            if isinstance(mark, LocalMark) and not self._was_cancelled(mark):
                return mark
        return None

    def _was_cancelled(self, mark: LocalMark) -> bool:
        """Return whether a mark only records a cancellation. The run has received that cancellation already, when it
        requested it.
        """
        if not _is_cancelled(mark) or mark.activity_type not in self._cancelled:
            return False
        self._cancelled.remove(mark.activity_type)
        return True

    def schedule(self, command: c.ScheduleLocalActivity, turn: Any) -> None:
        """Add a local activity that the run schedules. `turn` is its position in the other SDK's order."""
        self._turns[command.seq] = turn
        insort(self.waiting, command, key=lambda scheduled: self._turns[scheduled.seq])

    def cancel(self, seq: int) -> list[e.AnyEvent]:
        """Cancel a local activity. Return the events to deliver immediately."""
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
        """Remove the number of a cancelled local activity from the awaited numbers."""
        doomed = self._cancelled_numbers.get(activity_type)
        if doomed:
            self._drop_number(activity_type, doomed[0])

    def _drop_number(self, activity_type: str, number: int) -> None:
        for table in (self._numbers, self._cancelled_numbers):
            numbers = table.get(activity_type, [])
            if number in numbers:
                numbers.remove(number)

    def next_end(self) -> list[e.AnyEvent]:
        """Return the event for the next mark that the run waits for. Marks are delivered one at a time, in the order of
        their ends.
        """
        # The run has already received the events of activities that it cancelled, so their marks come last.
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
        if mark.arguments is not None:  # Java records the arguments
            arguments = mark.arguments
            fitting.sort(key=lambda command: not same_payloads(arguments, command.arguments))
        return fitting[0] if fitting else None

    def _matches_call(self, activity_type: str, mark: EffectMark) -> bool:
        """Return whether a value was recorded for this call. Go counts the calls for each name."""
        name = self._effects.get(activity_type)
        if name is None:
            return True
        return name == mark.name and mark.call <= self._calls[activity_type] + 1

    def _unchanged_effect(self) -> list[e.AnyEvent]:
        """Return the event for an activity that replaces a `MutableSideEffect` without a mark. A mark exists only if the
        value has changed.
        """
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


_TOLERANCE_NS = 2_000_000


class Pairing(msgspec.Struct, frozen=True):
    """The pairs of events and commands, and the unpaired events and commands."""

    pairs: tuple[tuple[h.HistoryEvent, c.Command], ...] = ()
    missing: tuple[h.HistoryEvent, ...] = ()
    surplus: tuple[c.Command, ...] = ()
    is_ambiguous: bool = False
    """Whether other pairs are possible if the commands are ordered differently."""


def pair_up(
    events: Iterable[h.HistoryEvent],
    commands: Iterable[c.Command],
    outcomes: Outcomes,
    names: Mapping[str, str],
    recorded: Mapping[int, Any],
) -> Pairing:
    """Pair each event with the command that fits it best.

    `names` maps the ids of children in this replay to the ids in the history. `recorded` maps events to the summaries of
    their commands, with decoded arguments.
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
    """Return whether a history cannot distinguish the two commands."""
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
    """The properties of an event that a command is compared with. They include the arguments if `exact` is True."""

    attributes: Any
    payloads: Payloads
    names: Mapping[str, str]
    exact: bool

    def has(self, arguments: Payloads) -> bool:
        """Return whether the arguments match, or need not match because `exact` is False."""
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
    # A generated id comes from the run's random numbers, and these differ between languages.
    is_generated = is_generated_id(command.workflow_id) and is_generated_id(view.attributes.workflow_id)
    return is_generated and view.has(command.arguments)


def _has_id(command: c.ScheduleActivity, recorded: str) -> bool:
    """Return whether the activity has the recorded id. Ids that the SDKs generated on both sides count as equal."""
    if command.activity_id == recorded:
        return True
    is_default = command.activity_id == str(command.seq)
    return is_default and (recorded.isdigit() or is_generated_id(recorded))


def _reaches(workflow_id: str, view: _View) -> bool:
    return bool(view.names.get(workflow_id, workflow_id) == view.attributes.workflow_id)
