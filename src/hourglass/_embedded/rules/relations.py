"""What ties a run to others, as data: its children, and what it asks the engine to do to other runs.

Must not know: runs, how anything is done (see `others`). An ask is made by a transition (`Step.asks`), and is
carried out after it, in the same change of the store: so a run that asked and the run that was asked agree
after every crash, and no ask is ever repeated.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hourglass._engine.commands import Command
from hourglass._history import events as o


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a run, from the request for it to its end; `run_id` is its first run, once it has started."""

    initiated_event_id: int
    spec: o.StartChildWorkflowExecutionInitiated
    run_id: str = ""
    started_event_id: int = 0


class RequestCancelChild(Command, frozen=True, kw_only=True):
    """Core's own command: ask a child of this run to cancel. Nobody hears of its outcome."""

    workflow_id: str
    namespace: str
    run_id: str = ""
    reason: str = ""


class StartChild(msgspec.Struct, frozen=True):
    """Start this child."""

    child: Child


class SendSignal(msgspec.Struct, frozen=True):
    """Send this signal; the event by which it was asked for."""

    initiated_event_id: int
    spec: o.SignalExternalWorkflowExecutionInitiated


class SendCancel(msgspec.Struct, frozen=True):
    """Ask this workflow to cancel; the event by which it was asked for."""

    initiated_event_id: int
    spec: o.RequestCancelExternalWorkflowExecutionInitiated


class LeaveChild(msgspec.Struct, frozen=True):
    """The run has closed: do with this child as its policy says."""

    child: Child


class TellParent(msgspec.Struct, frozen=True):
    """The run has closed, and nothing follows it: its parent must hear of it."""


class TellSchedule(msgspec.Struct, frozen=True):
    """The run has closed, and a schedule waits for the end of its workflow."""


Ask: TypeAlias = StartChild | SendSignal | SendCancel | LeaveChild | TellParent | TellSchedule
