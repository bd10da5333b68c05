"""Nexus operations of one run, by Core's rules (`NexusOutcomes`). Used only for replays of histories that a server
wrote, because this engine does not support Nexus.

Must not know: activations, the engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass.converter import CanceledFailure, Failure

# Cancellation types of Nexus operations in Temporal's protocol.
_ABANDON, _TRY_CANCEL = 1, 2


@dataclass(slots=True)
class _NexusOperation:
    """A Nexus operation that is unsent (`event_id` is 0), pending, or over."""

    command: c.ScheduleNexusOperation
    event_id: int = 0
    has_started: bool = False
    cancelling: bool = False
    over: bool = False


@dataclass(eq=False, slots=True)
class NexusOutcomes:
    """The Nexus operations of one run. Converts history events about them to events for the worker."""

    issued: deque[c.Command]
    _known: dict[int, _NexusOperation] = field(default_factory=dict)

    def issue(self, command: c.ScheduleNexusOperation | c.CancelNexusOperation) -> list[e.AnyEvent]:
        """Record a command to schedule or cancel an operation. Return the events that result immediately."""
        if isinstance(command, c.ScheduleNexusOperation):
            self._known[command.seq] = _NexusOperation(command)
            self.issued.append(command)
            return []
        operation = self._known.get(command.seq)
        if operation is None or operation.over or operation.cancelling:
            return []
        operation.cancelling = True
        if not operation.event_id:
            self.issued.remove(operation.command)
        elif (how := operation.command.cancellation_type) != _ABANDON:
            self.issued.append(command)
            if how != _TRY_CANCEL:
                return []
        return self._ended(operation, Failure("Nexus operation cancelled", CanceledFailure()))

    def bind(self, command: c.Command, event_id: int) -> None:
        """Record the id of the event that scheduled an operation."""
        if isinstance(command, c.ScheduleNexusOperation):
            self._known[command.seq].event_id = event_id

    def link_of(self, command: c.CancelNexusOperation) -> int:
        """Return the event id of the operation that a command cancels."""
        return self._known[command.seq].event_id

    def resolve(self, attributes: h.Attributes) -> list[e.AnyEvent]:
        """Return the events for the worker that follow from a history event. Return none if the event concerns no
        operation, or an operation that is over.
        """
        event_id = getattr(attributes, "scheduled_event_id", 0)
        operation = next(
            (candidate for candidate in self._known.values() if candidate.event_id == event_id), None
        )
        if operation is None or operation.over:
            return []
        seq = operation.command.seq
        match attributes:
            case h.NexusOperationStarted():
                operation.has_started = True
                return [e.NexusStarted(seq, attributes.operation_token)]
            case h.NexusOperationCompleted():
                operation.over = True
                first: list[e.AnyEvent] = [] if operation.has_started else [e.NexusStarted(seq, "")]
                return [*first, e.NexusCompleted(seq, attributes.result or h.NO_RESULT)]
            case h.NexusOperationEnd():
                return self._ended(operation, attributes.failure or Failure())
            case _:
                return []

    def _ended(self, operation: _NexusOperation, failure: Failure) -> list[e.AnyEvent]:
        operation.over = True
        if operation.has_started:
            return [e.NexusFailed(operation.command.seq, failure)]
        return [e.NexusStartFailed(operation.command.seq, failure)]
