"""Matching of a worker's commands with the history events that they led to. This is where nondeterminism is detected.

Must not know: activations, the engine. Like Core, this module compares kinds, ids and types, but not arguments.
Commands that were just accepted need not be compared with the events written for them. Invariants:

- The events of a task's commands follow the task's completion directly and in order.
- A deprecated patch marker may lack its command, and a patch command may lack its marker.
- Any other mismatch is `NondeterminismError`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hourglass._embedded.activations.outcomes import Outcomes
from hourglass._embedded.transitions.run import RequestCancelChild
from hourglass._evaluator import commands as c
from hourglass._evaluator.words import CommandSummary, describe, summarize
from hourglass._history import events as h
from hourglass._history import words
from hourglass._history.walk import is_patch_index
from hourglass.errors import NondeterminismError

COMMAND_OF = words.COMMAND_OF | {
    h.RequestCancelExternalWorkflowExecutionInitiated: (c.RequestCancelExternal, RequestCancelChild)
}
"""The command that leads to each kind of event, issued either by a run or by Core on the run's behalf."""

MATTERS = frozenset((h.WorkflowTaskCompleted, *COMMAND_OF))
"""The kinds of events that must always be passed to `match`. Other events are passed only while `Outcomes.expects` is
set.
"""

_WRITTEN_AS_ONE = frozenset((c.ScheduleActivity, c.StartTimer))
"""Commands that always lead to exactly one event, regardless of the other commands in the same answer."""


def match(outcomes: Outcomes, event: h.HistoryEvent) -> None:
    """Pair the next history event with the next issued command if the event results from a command."""
    attributes = event.attributes
    kind = type(attributes)
    if kind is h.WorkflowTaskCompleted:
        outcomes.expects = True
        _move_terminal(outcomes.issued)
    elif kind not in COMMAND_OF:
        if outcomes.expects:
            _settle(outcomes, event)
    elif isinstance(attributes, h.LocalActivityMarkerRecorded):
        _match_local(outcomes, event, attributes)
    # The SDK itself writes this index of patches, so no command corresponds to it.
    elif not is_patch_index(attributes):
        _pair(outcomes, event)


def own_events(outcomes: Outcomes, history: Sequence[h.HistoryEvent], position: int) -> int:
    """Record the events of the commands in an answer that was just applied, as long as the commands are of the most
    common kinds. Return the position after these events. `match` handles the others.

    Nothing is compared, because the engine wrote these events from the same commands, in the same order.
    """
    issued = outcomes.issued
    position += 1  # skip the completion event
    while issued and type(issued[0]) in _WRITTEN_AS_ONE:
        outcomes.bind(issued.popleft(), history[position].id)
        position += 1
    outcomes.expects = bool(issued)
    return position


def _match_local(outcomes: Outcomes, event: h.HistoryEvent, marker: h.LocalActivityMarkerRecorded) -> None:
    local = outcomes.local
    replayed = None if local is None else local.is_replayed(marker)
    if local is None or replayed is None:
        raise _mismatch(event, None)
    if not local.fits(marker):
        raise _mismatch(event, local.command_of(marker.seq))
    if replayed:  # the run was notified ahead of time, so no command corresponds to the marker
        local.recorded(marker.seq)
    else:
        _pair(outcomes, event)


def _pair(outcomes: Outcomes, event: h.HistoryEvent) -> None:
    issued = outcomes.issued
    attributes = event.attributes
    while issued and isinstance(issued[0], c.SetPatchMarker):
        if isinstance(attributes, h.MarkerRecorded) and attributes.patch_id == issued[0].patch_id:
            break
        if isinstance(attributes, h.MarkerRecorded) and attributes.deprecated:
            return
        issued.popleft()
    if not issued or not fits(issued[0], attributes, outcomes):
        if isinstance(attributes, h.MarkerRecorded) and attributes.deprecated:
            return
        raise _mismatch(event, issued[0] if issued else None)
    outcomes.bind(issued.popleft(), event.id)


def _move_terminal(issued: deque[c.Command]) -> None:
    """Move the first terminal command to the end and drop the other terminal commands, like the engine."""
    if len(issued) < 2:
        return
    terminal = [command for command in issued if isinstance(command, c.TERMINAL)]
    ordinary = [command for command in issued if not isinstance(command, c.TERMINAL)]
    issued.clear()
    issued.extend(ordinary + terminal[:1])


def _settle(outcomes: Outcomes, event: h.HistoryEvent) -> None:
    """Raise `NondeterminismError` if commands other than patches are still unmatched after the last event that the
    task's commands led to.
    """
    outcomes.expects = False
    for command in outcomes.issued:
        if not isinstance(command, c.SetPatchMarker):
            raise _mismatch(event, command)
    outcomes.issued.clear()


def fits(command: c.Command, attributes: h.Attributes, outcomes: Outcomes) -> bool:
    """Whether a command may have led to an event with these attributes, comparing only ids and types."""
    if not isinstance(command, COMMAND_OF[type(attributes)]):
        return False
    match command, attributes:
        case c.ScheduleActivity(), h.ActivityTaskScheduled():
            return (command.activity_id, command.activity_type) == (
                attributes.activity_id,
                attributes.activity_type,
            )
        case c.StartChildWorkflow(), h.StartChildWorkflowExecutionInitiated():
            return (command.workflow_id, command.workflow_type) == (
                attributes.workflow_id,
                attributes.workflow_type,
            )
        case h.RecordLocalActivity(), h.LocalActivityMarkerRecorded():
            return command.marker.seq == attributes.seq
        case c.StartTimer(), h.TimerStarted():
            return str(command.seq) == attributes.timer_id
        case c.CancelTimer(), h.TimerCanceled():
            return str(command.seq) == attributes.timer_id
        case c.RequestCancelActivity(), h.ActivityTaskCancelRequested():
            return outcomes.link_of(command) == attributes.scheduled_event_id
        case (
            c.AcceptUpdate() | c.CompleteUpdate() | c.RejectUpdate(),
            h.WorkflowExecutionUpdateAccepted() | h.WorkflowExecutionUpdateCompleted(),
        ):
            return command.protocol_instance_id == attributes.update_id
        case _:
            return True


def _mismatch(event: h.HistoryEvent, command: c.Command | None) -> NondeterminismError:
    expected = words.describe_event(event)
    produced = "no command" if command is None else _described(command)
    return NondeterminismError(
        f"event {event.id} of the history is for {expected}, but the workflow issued {produced}",
        expected=expected,
        produced=produced,
    )


def _described(command: c.Command) -> str:
    if isinstance(command, h.RecordLocalActivity):
        marker = command.marker
        return f"the end of {describe(CommandSummary('local activity', marker.activity_id, marker.activity_type))}"
    return describe(summarize(command))
