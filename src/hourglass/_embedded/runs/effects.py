"""The effects of runs on other runs (`EffectsOnOthers`): child starts and completions, signals, cancellations, close
policies.

Must not know: queues, handles, the store. This module finds the other run and applies transitions to both runs. The
decisions are made by the transitions.

A Temporal server carries out effects through a queue of transfer tasks beside each history, because the two runs may
be on different machines. Here both runs are in the same engine. Effects are carried out right after the change that
requested them, in the same iteration of the event loop, and become durable with it as one change. No intent has to be
stored or repeated: after a crash, either everything has happened or nothing has, and then the task that requested the
effects is retried. Observable behavior is the same as a server's: if a run closes in the same task that requests a
signal or a child, the signal is not sent and the child is not started, regardless of the policies.

Invariant: a run that cannot be read counts as missing for the run that refers to it, and does not affect any other
run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.transitions import children
from hourglass._embedded.transitions.run import (
    ApplyClosePolicy,
    Effect,
    NotifyParent,
    NotifySchedule,
    OpenChild,
    ReleaseClaims,
    SendCancel,
    SendSignal,
    StartChild,
)
from hourglass._evaluator.specs import IdReusePolicy, ParentClosePolicy
from hourglass._history import events as h
from hourglass.errors import StorageError

if TYPE_CHECKING:
    from hourglass._embedded.runs.runs import RunTable

logger = logging.getLogger("hourglass.embedded")

_TAKEN = h.StartChildFailedCause.WORKFLOW_ALREADY_EXISTS
_NOT_FOUND = h.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND


class LimitKeeping(Protocol):
    """The part of the limits component that runs use (see `limits.keepers`)."""

    def keeps(self, id: str) -> bool:
        """Whether the engine currently manages this limit."""
        ...

    def read(self, signal: h.SignalExternalWorkflowExecutionInitiated) -> Any:
        """Return the message that a run has sent to a limit's manager; None if the engine cannot read it."""
        ...

    def receive(self, sender: LoadedRun, id: str, message: Any) -> None:
        """Handle a message from a run to a limit's manager."""
        ...

    def run_closed(self, run_id: str) -> None:
        """Handle the closing of a run that holds or waits for a slot of a limit."""
        ...

    def realign(self) -> None:
        """Rearm the alarms after the clock has jumped."""
        ...


class EffectsOnOthers:
    """The effects of runs on other runs of the same engine."""

    def __init__(self, runs: RunTable, namespace: str) -> None:
        self._runs = runs
        self._namespace = namespace

    def carry_out(self, record: LoadedRun, effect: Effect) -> None:
        """Carry out an effect of a run on another run."""
        match effect:
            case StartChild(child):
                self._start(record, child)
            case SendSignal():
                self._signal(record, effect)
            case SendCancel():
                self._cancel(record, effect)
            case ApplyClosePolicy(child):
                self._leave(record, child)
            case NotifyParent():
                self._notify_parent(record)
            case NotifySchedule():
                self._runs.awaiting.ended(record)
            case ReleaseClaims():
                self._runs.keeping.run_closed(record.run.run_id)
            case _:
                assert_never(effect)

    def _start(self, parent: LoadedRun, child: OpenChild) -> None:
        if not parent.run.is_open:
            return
        initiated = child.initiated_event_id
        cause = self._start_failure(child)
        if cause is not None:
            self._runs.change(parent, children.child_not_started, initiated, cause)
            return
        run_id = self._runs.new_run_id()
        self._runs.open(children.first_event(parent.run, child, run_id, self._runs.clock.now_ns()))
        self._runs.change(parent, children.child_started, initiated, run_id)

    def _start_failure(self, child: OpenChild) -> h.StartChildFailedCause | None:
        """Return the reason why a child cannot start; None if it can. Terminate the existing run first if the id
        policy requires it.
        """
        request = child.initiated
        if request.namespace != self._namespace:
            return h.StartChildFailedCause.NAMESPACE_NOT_FOUND
        override = request.child.versioning_override
        if override is not None and not self._runs.has_version(override, request.spec.task_queue):
            return h.StartChildFailedCause.INVALID_VERSIONING_OVERRIDE
        try:
            existing = self._runs.current(request.workflow_id)
        except StorageError as error:
            logger.error("the latest run of workflow %r cannot be read: %s", request.workflow_id, error)
            return _TAKEN
        if self._runs.keeping.keeps(request.workflow_id):
            return _TAKEN  # the engine manages this limit: a second manager would grant the same slots twice
        if existing is None:
            return None
        if not existing.run.is_open:
            return None if children.may_reuse(request.child.id_reuse_policy, existing.run.status) else _TAKEN
        if request.child.id_reuse_policy is not IdReusePolicy.TERMINATE_IF_RUNNING:
            return _TAKEN
        reason = "TerminateIfRunning WorkflowIdReusePolicy Policy"
        self._runs.change(existing, children.terminated_by_engine, reason)
        return None

    def _leave(self, parent: LoadedRun, child: OpenChild) -> None:
        """Apply a child's close policy to the latest run of its chain."""
        policy = child.initiated.child.parent_close_policy
        if policy is ParentClosePolicy.ABANDON:
            return
        target = self._find(child.initiated.workflow_id, "")
        if target is None or not target.run.is_open or target.run.started.first_run_id != child.run_id:
            return
        if not children.is_child_of(target.run, parent.run):
            # The child was started by the run from which the parent was reset. A server does not touch such a
            # child.
            return
        if policy is ParentClosePolicy.REQUEST_CANCEL:
            self._runs.change(target, children.cancelled_by, parent.run, "", 0)
        else:
            reason = "by parent close policy"
            self._runs.change(target, children.terminated_by_engine, reason)

    def _notify_parent(self, record: LoadedRun) -> None:
        started = record.run.started
        parent = self._find(started.parent_workflow_id, started.parent_run_id)
        while parent is not None and parent.run.reset_run_id:
            # The child now belongs to the run that replaced this parent.
            parent = self._find(started.parent_workflow_id, parent.run.reset_run_id)
        initiated = started.parent_initiated_event_id
        child = None if parent is None or not parent.run.is_open else parent.run.children.get(initiated)
        # A parent that was reset may have requested a different child with the same event id.
        if parent is not None and child is not None and child.run_id == started.first_run_id:
            self._runs.change(parent, children.child_ended, initiated, record.run)

    def _signal(self, sender: LoadedRun, effect: SendSignal) -> None:
        if not sender.run.is_open:
            return
        target = self._target(sender, effect)
        if isinstance(target, LoadedRun) and not (target.run.is_open and _may_reach(sender, target, effect)):
            target = _NOT_FOUND
        message = self._runs.keeping.read(effect.spec) if target is _NOT_FOUND else None
        cause: h.ExternalFailedCause | None = None
        if message is None:
            cause = self._deliver(sender, effect, target)
        self._runs.change(sender, children.signal_sent, effect, cause)
        if message is not None:
            self._runs.keeping.receive(sender, effect.spec.workflow_id, message)

    def _deliver(
        self, sender: LoadedRun, effect: SendSignal, target: LoadedRun | h.ExternalFailedCause
    ) -> h.ExternalFailedCause | None:
        """Deliver a signal to another run. Return the cause if the signal cannot be delivered."""
        if not isinstance(target, LoadedRun):
            return target
        if target.has_signals(self._runs.limits.signals):
            return h.ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED
        ended = self._runs.change(target, children.signalled_by, sender.run, effect)
        return _NOT_FOUND if ended else None  # the target exceeded its limits and was terminated instead

    def _cancel(self, sender: LoadedRun, effect: SendCancel) -> None:
        if not sender.run.is_open:
            return
        target = self._target(sender, effect)
        cause: h.ExternalFailedCause | None = None
        if not isinstance(target, LoadedRun):
            cause = target
        elif target.run.is_open and not _may_reach(sender, target, effect):
            cause = _NOT_FOUND
        elif target.run.is_open:  # a closed run needs no cancellation
            reason, initiated = effect.spec.reason, effect.initiated_event_id
            self._runs.change(target, children.cancelled_by, sender.run, reason, initiated)
        self._runs.change(sender, children.cancel_sent, effect, cause)

    def _target(
        self, sender: LoadedRun, effect: SendSignal | SendCancel
    ) -> LoadedRun | h.ExternalFailedCause:
        spec = effect.spec
        if spec.namespace != self._namespace:
            return h.ExternalFailedCause.NAMESPACE_NOT_FOUND
        if spec.workflow_id == sender.run.started.workflow_id:
            return _NOT_FOUND  # a server's rule: a workflow cannot signal any of its own runs
        return self._find(spec.workflow_id, spec.run_id) or _NOT_FOUND

    def _find(self, workflow_id: str, run_id: str) -> LoadedRun | None:
        try:
            record = self._runs.record(run_id) if run_id else self._runs.current(workflow_id)
        except StorageError as error:
            logger.error("a run of workflow %r cannot be read: %s", workflow_id, error)
            return None
        is_meant = (
            record is not None
            and record.run.started.workflow_id == workflow_id
            and not record.run.is_standalone_activity
        )
        return record if is_meant else None


def _may_reach(sender: LoadedRun, target: LoadedRun, effect: SendSignal | SendCancel) -> bool:
    return not effect.spec.child_only or children.is_child_of(target.run, sender.run)


class EndListener(Protocol):
    """The part of schedules that runs use. Schedules wait until workflows have closed.

    A workflow has closed when its whole chain has ended: retries, continue-as-new and resets continue under the same
    id.
    """

    def awaits(self, workflow_id: str) -> bool:
        """Whether a schedule is waiting for this workflow to close."""
        ...

    def ended(self, record: LoadedRun) -> None:
        """Handle the closing of a run that a schedule is waiting for. The consequences become part of the same change."""
        ...

    def realign(self) -> None:
        """Rearm the alarms after the clock has jumped."""
        ...
