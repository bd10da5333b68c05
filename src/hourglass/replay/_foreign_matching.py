"""What a run asked for in one workflow task, against what its history says that it asked for there. Pure.

SDKs differ in whose turn it is when several things happen at once, so that the order within a task does not count here:
each event takes the command that fits it best. All else does: the task, the kind, the name, the id where it was chosen,
and (reported apart) arguments, durations and results.

What fits without its counterpart: the end of a timer, which no SDK of the first years asked for where a wait with a limit was
over; and a timer that was taken back in the task in which it was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hourglass._embedded import history as h
from hourglass._embedded import history_others as o
from hourglass._embedded import history_updates as u
from hourglass._embedded.matching import COMMAND_OF
from hourglass._embedded.outcomes import Outcomes
from hourglass._embedded.relations import RequestCancelChild
from hourglass._engine import commands as c
from hourglass.replay._comparison import same_payloads

_MADE_UP = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TOLERANCE_NS = 2_000_000


class Pairing(msgspec.Struct, frozen=True):
    """Which command led to which event, and what is left over on either side."""

    pairs: tuple[tuple[h.HistoryEvent, c.Command], ...] = ()
    missing: tuple[h.HistoryEvent, ...] = ()
    surplus: tuple[c.Command, ...] = ()


def pair_up(
    asked: Iterable[h.HistoryEvent],
    commands: Iterable[c.Command],
    outcomes: Outcomes,
    names: Mapping[str, str],
) -> Pairing:
    """Give each event the command that fits it best; `names` are the ids of children, from ours to the history's."""
    open_events = list(asked)
    left = list(commands)
    pairs: list[tuple[h.HistoryEvent, c.Command]] = []
    for exact in (True, False):
        for event in list(open_events):
            fit = next((each for each in left if _fits(each, event.attributes, outcomes, names, exact)), None)
            if fit is not None:
                left = [each for each in left if each is not fit]
                open_events.remove(event)
                pairs.append((event, fit))
    pairs.sort(key=lambda pair: pair[0].id)
    return Pairing(
        tuple(pairs),
        tuple(event for event in open_events if not isinstance(event.attributes, h.TimerCanceled)),
        tuple(command for command in left if not isinstance(command, c.CancelTimer)),
    )


def _fits(
    command: c.Command,
    attributes: h.Attributes,
    outcomes: Outcomes,
    names: Mapping[str, str],
    exact: bool,
) -> bool:
    if not isinstance(command, COMMAND_OF[type(attributes)]):
        return False
    match command, attributes:
        case c.ScheduleActivity(), h.ActivityTaskScheduled():
            same = not exact or same_payloads(attributes.arguments, command.arguments)
            return same and command.activity_type == attributes.activity_type
        case c.StartTimer(), h.TimerStarted():
            return not exact or abs(command.duration_ns - attributes.duration_ns) <= _TOLERANCE_NS
        case c.CancelTimer(), h.TimerCanceled():
            return outcomes.link_of(command) == attributes.started_event_id
        case c.RequestCancelActivity(), h.ActivityTaskCancelRequested():
            return outcomes.link_of(command) == attributes.scheduled_event_id
        case c.StartChildWorkflow(), o.StartChildWorkflowExecutionInitiated():
            return _fits_child(command, attributes, exact)
        case ((c.SignalExternalWorkflow() | c.RequestCancelExternal() | RequestCancelChild()), _):
            return _fits_other(command, attributes, names, exact)
        case (
            (c.AcceptUpdate() | c.CompleteUpdate() | c.RejectUpdate()),
            (u.WorkflowExecutionUpdateAccepted() | u.WorkflowExecutionUpdateCompleted()),
        ):
            return command.protocol_instance_id == attributes.update_id
        case c.UpsertSearchAttributes(), h.UpsertWorkflowSearchAttributes():
            return not exact or set(command.search_attributes) == set(attributes.search_attributes)
        case c.UpsertMemo(), h.WorkflowPropertiesModified():
            return not exact or set(command.memo) == set(attributes.memo)
        case _:
            return True


def _fits_child(
    command: c.StartChildWorkflow, attributes: o.StartChildWorkflowExecutionInitiated, exact: bool
) -> bool:
    if command.workflow_type != attributes.workflow_type:
        return False
    if command.workflow_id == attributes.workflow_id:
        return True
    # An id that was not chosen comes from the run's randomness, which is another in each language.
    same = not exact or same_payloads(attributes.arguments, command.arguments)
    return same and bool(_MADE_UP.fullmatch(command.workflow_id))


def _fits_other(command: Any, attributes: Any, names: Mapping[str, str], exact: bool) -> bool:
    if names.get(command.workflow_id, command.workflow_id) != attributes.workflow_id:
        return False
    if isinstance(command, c.SignalExternalWorkflow):
        same = not exact or same_payloads(attributes.arguments, command.arguments)
        return same and bool(command.signal_name == attributes.signal_name)
    return True
