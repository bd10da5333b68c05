"""The updates of one run (`UpdateOutcomes`), and the worker's answers to them.

Must not know: whether events are live or replayed, activations, the engine. Invariants: an update is accepted or
rejected once, and is completed only after it was accepted. A rejection is not a command and leaves no event in the
history.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass.converter import Failure

UpdateCommand: TypeAlias = c.AcceptUpdate | c.RejectUpdate | c.CompleteUpdate


@dataclass(slots=True)
class _OpenUpdate:
    """An update that was received, accepted (`accepted_event_id` is set once the event is written), or completed."""

    request: h.UpdateRequest
    admitted_event_id: int = 0
    is_accepted: bool = False
    is_over: bool = False
    accepted_event_id: int = 0


@dataclass
class UpdateOutcomes:
    """The open updates of one run, and the rejections that have not been passed to the engine yet."""

    issued: deque[c.Command]
    rejected: list[tuple[str, Failure]] = field(default_factory=list)
    _known: dict[str, _OpenUpdate] = field(default_factory=dict)

    def receive(
        self, request: h.UpdateRequest, admitted_event_id: int, *, is_replaying: bool
    ) -> e.UpdateReceived:
        """Record an update, either new from a client or from the history. Return the event for the worker."""
        self._known[request.update_id] = _OpenUpdate(request, admitted_event_id)
        return e.UpdateReceived(
            id=request.update_id,
            protocol_instance_id=request.update_id,
            name=request.name,
            arguments=request.arguments,
            headers=request.headers,
            run_validator=not is_replaying,
        )

    def issue(self, command: UpdateCommand) -> str:
        """Record a worker's answer to an update. Return an error message if the answer is out of order, else an empty
        string.
        """
        update = self._known.get(command.protocol_instance_id)
        if update is None or update.is_over or not _may_follow(update, command):
            return f"{type(command).__name__} for update {command.protocol_instance_id!r} is out of order"
        match command:
            case c.AcceptUpdate():
                update.is_accepted = True
            case c.RejectUpdate() if not update.is_accepted:
                del self._known[command.protocol_instance_id]
                self.rejected.append((command.protocol_instance_id, command.failure))
                return ""
            case _:
                update.is_over = True
        self.issued.append(command)
        return ""

    def bind(self, command: UpdateCommand, event_id: int) -> None:
        """Record the id of the event that an answer led to."""
        if isinstance(command, c.AcceptUpdate):
            self._known[command.protocol_instance_id].accepted_event_id = event_id
        else:
            del self._known[command.protocol_instance_id]

    def link_of(self, command: UpdateCommand) -> int:
        """Return the id of the event that an answer refers to: the admission for an acceptance, the acceptance for a
        completion.
        """
        update = self._known[command.protocol_instance_id]
        return update.admitted_event_id if isinstance(command, c.AcceptUpdate) else update.accepted_event_id

    def request_of(self, command: UpdateCommand) -> h.UpdateRequest:
        """Return the request that an answer belongs to."""
        return self._known[command.protocol_instance_id].request

    def take_rejections(self) -> tuple[tuple[str, Failure], ...]:
        """Remove and return the ids and failures of the rejected updates."""
        if not self.rejected:
            return ()
        rejected, self.rejected = tuple(self.rejected), []
        return rejected


def _may_follow(update: _OpenUpdate, command: UpdateCommand) -> bool:
    match command:
        case c.AcceptUpdate():
            return not update.is_accepted
        case c.CompleteUpdate():
            return update.is_accepted
        case _:
            return True
