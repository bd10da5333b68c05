"""What a run asked for in one workflow task, against what its history says that it asked for there. Pure.

SDKs differ in whose turn it is when several things happen at once, so that the order within a task does not count here:
each event takes the command that fits it best. All else does: the task, the kind, the name, the id where it was chosen,
and (reported apart) arguments, durations and results.

What fits without its counterpart: the end of a timer, which no SDK of the first years asked for where a wait with a limit was
over; and a timer that was taken back in the task in which it was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from hourglass._embedded.rules.run import RequestCancelChild
from hourglass._embedded.workers.matching import COMMAND_OF
from hourglass._embedded.workers.outcomes import Outcomes
from hourglass._engine import commands as c
from hourglass._engine.events import Payloads
from hourglass._history import events as h
from hourglass.replay._comparison import is_made_up, same_payloads

_TOLERANCE_NS = 2_000_000


class Pairing(msgspec.Struct, frozen=True):
    """Which command led to which event, and what is left over on either side."""

    pairs: tuple[tuple[h.HistoryEvent, c.Command], ...] = ()
    missing: tuple[h.HistoryEvent, ...] = ()
    surplus: tuple[c.Command, ...] = ()
    is_ambiguous: bool = False
    """Whether another order of the commands would have given other pairs."""


def pair_up(
    asked: Iterable[h.HistoryEvent],
    commands: Iterable[c.Command],
    outcomes: Outcomes,
    names: Mapping[str, str],
    recorded: Mapping[int, Any],
) -> Pairing:
    """Give each event the command that fits it best.

    `names` are the ids of children, from ours to the history's; `recorded` says by event with which arguments things were
    asked for, decoded.
    """
    open_events = list(asked)
    left = list(commands)
    pairs: list[tuple[h.HistoryEvent, c.Command]] = []
    ambiguous = False
    for exact in (True, False):
        for event in list(open_events):
            known = recorded.get(event.id)
            view = _View(event.attributes, known.payloads if known is not None else (), names, exact)
            fit = next((each for each in left if _fits(each, view, outcomes)), None)
            if fit is not None:
                left = [each for each in left if each is not fit]
                ambiguous = ambiguous or any(_alike(fit, each) for each in left)
                open_events.remove(event)
                pairs.append((event, fit))
    pairs.sort(key=lambda pair: pair[0].id)
    return Pairing(
        tuple(pairs),
        tuple(event for event in open_events if not isinstance(event.attributes, h.TimerCanceled)),
        tuple(command for command in left if not isinstance(command, c.CancelTimer)),
        ambiguous,
    )


def _alike(one: c.Command, other: c.Command) -> bool:
    """Whether nothing in a history would tell which of the two is which."""
    match one, other:
        case c.StartTimer(), c.StartTimer():
            return one.duration_ns == other.duration_ns
        case c.ScheduleActivity(), c.ScheduleActivity():
            return one.activity_type == other.activity_type and one.arguments == other.arguments
        case c.StartChildWorkflow(), c.StartChildWorkflow():
            return one.workflow_type == other.workflow_type and one.arguments == other.arguments
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
            same = command.activity_type == attributes.activity_type and view.has(command.arguments)
            return same and _has_id(command, attributes.activity_id)
        case c.StartTimer():
            return not exact or abs(command.duration_ns - attributes.duration_ns) <= _TOLERANCE_NS
        case c.CancelTimer():
            return bool(outcomes.link_of(command) == attributes.started_event_id)
        case c.RequestCancelActivity():
            return bool(outcomes.link_of(command) == attributes.scheduled_event_id)
        case c.StartChildWorkflow():
            return _fits_child(command, view)
        case c.SignalExternalWorkflow():
            same = command.signal_name == attributes.signal_name and view.has(command.arguments)
            return same and _reaches(command.workflow_id, view)
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
    drawn = is_made_up(command.workflow_id) and is_made_up(view.attributes.workflow_id)
    return drawn and view.has(command.arguments)


def _has_id(command: c.ScheduleActivity, recorded: str) -> bool:
    """Whether an activity goes by the id on record: one that was chosen, or one that was chosen neither here nor there."""
    if command.activity_id == recorded:
        return True
    is_default = command.activity_id == str(command.seq)
    return is_default and (recorded.isdigit() or is_made_up(recorded))


def _reaches(workflow_id: str, view: _View) -> bool:
    return bool(view.names.get(workflow_id, workflow_id) == view.attributes.workflow_id)
