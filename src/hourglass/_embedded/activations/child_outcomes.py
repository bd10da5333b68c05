"""Outcomes of a run's children and of its signals and cancellations to other workflows: commands in, events for the
worker out.

Must not know: whether events are live or replayed, activations, the engine. The rules are those of Core's state
machines for children, signals and cancellations. They decide which cancellations take effect immediately, which ones
revoke an unsent request, which outcomes the worker no longer waits for, and how outcomes are wrapped. As in Core,
WAIT_CANCELLATION_REQUESTED waits until the child has closed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from hourglass._embedded.transitions.run import RequestCancelChild
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import ChildCancellationType
from hourglass._history import events as h
from hourglass.converter import (
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.errors import RetryState, TimeoutType

_AT_ONCE = (ChildCancellationType.ABANDON, ChildCancellationType.TRY_CANCEL)

_SIGNAL_REASONS = {
    h.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND: "it was not found",
    h.ExternalFailedCause.NAMESPACE_NOT_FOUND: "it was not found",
    h.ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED: "The per-workflow signal limit was exceeded",
}
_CAUSE_NAMES = {
    h.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND: "ExternalWorkflowExecutionNotFound",
    h.ExternalFailedCause.NAMESPACE_NOT_FOUND: "NamespaceNotFound",
    h.ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED: "SignalCountLimitExceeded",
}

OtherCommand: TypeAlias = (
    c.StartChildWorkflow
    | c.CancelChildWorkflow
    | c.SignalExternalWorkflow
    | c.CancelSignalExternal
    | c.RequestCancelExternal
)


@dataclass
class _Child:
    """A child that is unsent (`initiated` is 0), requested, started, or over. The child is over once its end was
    reported to the worker.
    """

    command: c.StartChildWorkflow
    initiated: int = 0
    started: int = 0
    run_id: str = ""
    over: bool = False


@dataclass
class ChildOutcomes:
    """The children, outgoing signals and outgoing cancellations of one run. `issued` is shared with `Outcomes`."""

    issued: deque[c.Command]
    run_id: str
    namespace: str
    _children: dict[int, _Child] = field(default_factory=dict)
    _signals: dict[int, c.SignalExternalWorkflow] = field(default_factory=dict)
    _by_event: dict[int, _Child | c.SignalExternalWorkflow | c.RequestCancelExternal] = field(
        default_factory=dict
    )

    def is_taken(self, command: c.Command) -> bool:
        """Whether the sequence number of a command is already in use."""
        match command:
            case c.StartChildWorkflow():
                return command.seq in self._children
            case c.SignalExternalWorkflow():
                return command.seq in self._signals
            case _:
                return False

    def issue(self, command: OtherCommand) -> list[e.AnyEvent]:
        """Record a command from the worker. Return the events that result immediately."""
        match command:
            case c.StartChildWorkflow():
                named = msgspec.structs.replace(command, namespace=command.namespace or self.namespace)
                self._children[command.seq] = _Child(named)
                self.issued.append(named)
            case c.SignalExternalWorkflow():
                sent = msgspec.structs.replace(command, namespace=command.namespace or self.namespace)
                self._signals[command.seq] = sent
                self.issued.append(sent)
            case c.RequestCancelExternal():
                self.issued.append(self._explained(command))
            case c.CancelChildWorkflow():
                return self._cancel_child(command)
            case c.CancelSignalExternal():
                return self._cancel_signal(command)
        return []

    def _explained(self, command: c.RequestCancelExternal) -> c.RequestCancelExternal:
        reason = f"Cancel requested by workflow with run id {self.run_id} with reason: {command.reason}"
        return msgspec.structs.replace(command, namespace=command.namespace or self.namespace, reason=reason)

    def bind(self, command: c.Command, event_id: int) -> None:
        """Record the id of the event that a command led to. From then on, the event id identifies the request."""
        match command:
            case c.StartChildWorkflow():
                child = self._children[command.seq]
                child.initiated = event_id
                self._by_event[event_id] = child
            case c.SignalExternalWorkflow() | c.RequestCancelExternal():
                self._by_event[event_id] = command
            case _:
                pass

    def _cancel_child(self, command: c.CancelChildWorkflow) -> list[e.AnyEvent]:
        child = self._children.get(command.seq)
        if child is None or child.over:
            return []
        if not child.initiated:
            del self._children[command.seq]
            self.issued.remove(child.command)
            return [e.ChildStartCancelled(command.seq, self._not_scheduled(child, command.reason))]
        kind = child.command.child.cancellation_type
        if kind is not ChildCancellationType.ABANDON:
            self.issued.append(
                RequestCancelChild(
                    workflow_id=child.command.workflow_id,
                    namespace=child.command.namespace,
                    run_id=child.run_id,
                    reason=command.reason,
                    event_groups=command.event_groups,
                )
            )
        if kind not in _AT_ONCE:
            return []
        child.over = True
        return [e.ChildCancelled(command.seq, self._cancelled(child))]

    def _cancel_signal(self, command: c.CancelSignalExternal) -> list[e.AnyEvent]:
        sent = self._signals.get(command.seq)
        if sent is None or not any(queued is sent for queued in self.issued):
            return []  # the signal has already been sent
        self.issued.remove(sent)
        del self._signals[command.seq]
        failure = Failure("Signal was cancelled before being sent", CanceledFailure())
        return [e.ExternalSignalResolved(command.seq, failure)]

    def resolve(self, attributes: h.Attributes, event_id: int) -> list[e.AnyEvent]:
        """Record the outcome of a request. Return the events for the worker."""
        match attributes:
            case h.ChildWorkflowExecutionStarted():
                return self._started(attributes, event_id)
            case h.StartChildWorkflowExecutionFailed():
                return self._start_failed(attributes)
            case h.ChildEnd():
                return self._ended(attributes)
            case h.ExternalWorkflowExecutionSignaled():
                return self._signal_resolved(attributes.initiated_event_id, None)
            case h.SignalExternalWorkflowExecutionFailed(cause=cause):
                failure = _not_reached(f"signal external workflow because {_SIGNAL_REASONS[cause]}", cause)
                return self._signal_resolved(attributes.initiated_event_id, failure)
            case h.ExternalWorkflowExecutionCancelRequested():
                return self._cancel_resolved(attributes.initiated_event_id, None)
            case h.RequestCancelExternalWorkflowExecutionFailed(cause=cause):
                failure = _not_reached("cancel external workflow because not found", cause)
                return self._cancel_resolved(attributes.initiated_event_id, failure)
            case _:
                return []

    def _started(self, attributes: h.ChildWorkflowExecutionStarted, event_id: int) -> list[e.AnyEvent]:
        child = self._by_event.get(attributes.initiated_event_id)
        if not isinstance(child, _Child):
            return []
        child.run_id = attributes.run_id
        child.started = event_id
        return [] if child.over else [e.ChildStarted(child.command.seq, attributes.run_id)]

    def _start_failed(self, attributes: h.StartChildWorkflowExecutionFailed) -> list[e.AnyEvent]:
        child = self._finished_child(attributes.initiated_event_id)
        if child is None:
            return []
        command = child.command
        exists = attributes.cause is h.StartChildFailedCause.WORKFLOW_ALREADY_EXISTS
        wrong = attributes.cause is h.StartChildFailedCause.INVALID_VERSIONING_OVERRIDE
        return [e.ChildStartFailed(command.seq, command.workflow_id, command.workflow_type, exists, wrong)]

    def _ended(self, attributes: h.ChildEnd) -> list[e.AnyEvent]:
        child = self._finished_child(attributes.initiated_event_id)
        if child is None:
            return []
        seq = child.command.seq
        match attributes:
            case h.ChildWorkflowExecutionCompleted(result=result):
                return [e.ChildCompleted(seq, result)]
            case h.ChildWorkflowExecutionCanceled():
                return [e.ChildCancelled(seq, self._cancelled(child))]
            case h.ChildWorkflowExecutionFailed(failure=failure, retry_state=state):
                failed = self._wrap(child, "Child Workflow execution failed", failure, state)
            case h.ChildWorkflowExecutionTimedOut(retry_state=state):
                late = Failure("Timed out", TimeoutFailure(TimeoutType.START_TO_CLOSE))
                failed = self._wrap(child, "Child Workflow execution timed out", late, state)
            case _:
                ended = Failure("Terminated", TerminatedFailure())
                failed = self._wrap(child, "Child Workflow execution terminated", ended)
        return [e.ChildFailed(seq, failed)]

    def _finished_child(self, initiated_event_id: int) -> _Child | None:
        """Remove the child with this event id. Return it if the worker is still waiting for its outcome."""
        child = self._by_event.pop(initiated_event_id, None)
        if not isinstance(child, _Child):
            return None
        self._children.pop(child.command.seq, None)
        was_over, child.over = child.over, True
        return None if was_over else child

    def _signal_resolved(self, initiated_event_id: int, failure: Failure | None) -> list[e.AnyEvent]:
        command = self._by_event.pop(initiated_event_id, None)
        if not isinstance(command, c.SignalExternalWorkflow):
            return []
        self._signals.pop(command.seq, None)
        return [e.ExternalSignalResolved(command.seq, failure)]

    def _cancel_resolved(self, initiated_event_id: int, failure: Failure | None) -> list[e.AnyEvent]:
        command = self._by_event.pop(initiated_event_id, None)
        if not isinstance(command, c.RequestCancelExternal):
            return []  # the event belongs to a cancellation of a child, which reports no outcome
        return [e.ExternalCancelResolved(command.seq, failure)]

    def _cancelled(self, child: _Child) -> Failure:
        return self._wrap(child, "Child Workflow execution cancelled", Failure(info=CanceledFailure()))

    def _not_scheduled(self, child: _Child, reason: str) -> Failure:
        message = f"Child Workflow Execution cancelled before scheduled: {reason}"
        return self._wrap(child, message, Failure(info=CanceledFailure()))

    def _wrap(
        self,
        child: _Child,
        message: str,
        cause: Failure,
        state: RetryState = RetryState.NON_RETRYABLE_FAILURE,
    ) -> Failure:
        info = ChildWorkflowFailure(
            namespace=child.command.namespace,
            workflow_id=child.command.workflow_id,
            run_id=child.run_id,
            workflow_type=child.command.workflow_type,
            initiated_event_id=child.initiated,
            started_event_id=child.started,
            retry_state=state,
        )
        return Failure(message, info, cause=cause)


def _not_reached(what: str, cause: h.ExternalFailedCause) -> Failure:
    return Failure(f"Unable to {what}", ApplicationFailure(type=_CAUSE_NAMES[cause]))
