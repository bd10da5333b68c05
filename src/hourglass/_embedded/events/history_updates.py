"""The events by which a history tells of updates; part of `history`, whose rules hold.

An update that was refused leaves no event. `WorkflowExecutionUpdateAdmitted` stands only in runs that were reset:
everywhere else an update that is not accepted yet waits in memory.
"""

from __future__ import annotations

import msgspec

from hourglass._embedded.events.history_base import Attributes, Fields
from hourglass._engine.events import Payloads
from hourglass.converter import Failure, Payload


class UpdateRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What somebody asked for."""

    update_id: str
    name: str
    arguments: Payloads = ()
    headers: Fields = {}
    identity: str = ""


class WorkflowExecutionUpdateAdmitted(Attributes, frozen=True, kw_only=True):
    """The update was asked of the run that this one was reset from."""

    request: UpdateRequest


class WorkflowExecutionUpdateAccepted(Attributes, frozen=True, kw_only=True):
    """The update passed its validator.

    `sequencing_event_id` is the event after which the worker saw it. The request is here unless the history has it
    in the event of its admission.
    """

    update_id: str
    sequencing_event_id: int
    request: UpdateRequest | None = None


class WorkflowExecutionUpdateCompleted(Attributes, frozen=True, kw_only=True):
    """The update's handler ended: with a failure if there is one, else with the result."""

    update_id: str
    accepted_event_id: int
    identity: str = ""
    result: Payload | None = None
    failure: Failure | None = None


UPDATE_KINDS: tuple[type[Attributes], ...] = (
    WorkflowExecutionUpdateAdmitted,
    WorkflowExecutionUpdateAccepted,
    WorkflowExecutionUpdateCompleted,
)
