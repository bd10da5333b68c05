"""Transactions over several runs (`Transaction`), and the effects of runs on other runs (`EffectsOnOthers`): starts of
children, their ends, signals, cancellations, close policies.

Must not know: queues, handles, the store. Nothing here decides what a transition decides; it finds the other run and
applies transitions to both.

A Temporal server does this with a queue of transfer tasks beside each history, because the two runs may live on two
machines. Here both are in one engine, so effects are carried out right after the change that requested them, in the same
turn of the loop, and all of it becomes durable as one change. So there is no intent to keep and none to repeat: after a
crash either all of it has happened or nothing, and the task that requested it is tried again. Behavior of a server that can
be observed is kept: a run that closes in the very task that requests something has sent no signal and started no child,
whatever the policies say.

Invariants: all parts of a transaction are in memory before any of them is announced; effects are carried out in the order
of their requests, and those that follow from them come after all that were requested before, however deep; changes in
memory are handed to the store even if a part raises; a run that cannot be read counts as missing for the run that refers to
it, and disturbs no other.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, assert_never

from hourglass._embedded.clock import Clock
from hourglass._embedded.runs.run import EndListener, LoadedRun
from hourglass._embedded.store.store import RunChange
from hourglass._embedded.transitions import children
from hourglass._embedded.transitions.run import (
    ApplyClosePolicy,
    Change,
    Effect,
    NotifyParent,
    NotifySchedule,
    OpenChild,
    ReleaseClaims,
    Run,
    SendCancel,
    SendSignal,
    StartChild,
)
from hourglass._embedded.transitions.size_limits import Limits
from hourglass._evaluator.specs import IdReusePolicy, ParentClosePolicy, VersioningOverride
from hourglass._history import events as h
from hourglass.errors import StorageError

# --- transactions ---------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One run's part; without a change it is announced, and nothing is stored."""

    record: LoadedRun
    change: RunChange | None
    ids: Collection[int]
    earliest: int


class Transaction:
    """A transaction over several runs: gathers its parts from the outermost `begin` to its end, then hands them to
    `settle`.
    """

    def __init__(
        self, carry_out: Callable[[LoadedRun, Effect], None], settle: Callable[[list[Part], int], None]
    ) -> None:
        self._carry_out = carry_out
        self._settle = settle
        self._parts: list[Part] = []
        self._effects: deque[tuple[LoadedRun, Effect]] = deque()
        self.is_open = False
        """Whether it has begun: what happens now is a part of it."""

    def add(self, part: Part) -> None:
        """One more part."""
        self._parts.append(part)

    def add_effects(self, record: LoadedRun, effects: Iterable[Effect]) -> None:
        """Add effects of a run on other runs."""
        self._effects.extend((record, effect) for effect in effects)

    @contextlib.contextmanager
    def begin(self, now_ns: int) -> Iterator[Transaction]:
        """What happens in here, and all that it asks of other runs, becomes durable together."""
        if self.is_open:
            yield self
            return
        self.is_open = True
        try:
            yield self
        finally:
            try:
                while self._effects:
                    self._carry_out(*self._effects.popleft())
            finally:
                # Whatever was raised: memory has changed, so the store must get all of it, or the two would differ.
                self.is_open = False
                parts, self._parts = self._parts, []
                self._settle(parts, now_ns)


# --- effects on other runs ------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.embedded")

_TAKEN = h.StartChildFailedCause.WORKFLOW_ALREADY_EXISTS
_NOT_FOUND = h.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND


class LimitKeeping(Protocol):
    """What runs know of the limits that the engine keeps (see `keepers`)."""

    def keeps(self, id: str) -> bool:
        """Whether the engine keeps this limit now."""
        ...

    def read(self, signal: h.SignalExternalWorkflowExecutionInitiated) -> Any:
        """What a run says to a keeper; None where the engine cannot read it."""
        ...

    def receive(self, sender: LoadedRun, id: str, message: Any) -> None:
        """A run says something to a keeper."""
        ...

    def run_closed(self, run_id: str) -> None:
        """A run that has something of a limit has closed."""
        ...

    def realign(self) -> None:
        """Time has jumped."""
        ...


class Runs(Protocol):
    """What is needed of `runs.RunTable`."""

    clock: Clock
    limits: Limits
    new_run_id: Callable[[], str]
    awaiting: EndListener
    keeping: LimitKeeping

    has_version: Callable[[VersioningOverride, str], bool]

    def record(self, run_id: str) -> LoadedRun | None:
        """The run of this id."""
        ...

    def current(self, workflow_id: str) -> LoadedRun | None:
        """The latest run of a workflow."""
        ...

    def open(self, started: h.WorkflowExecutionStarted) -> LoadedRun:
        """Begin a run."""
        ...

    def change(self, record: LoadedRun, transition: Callable[[Run, int], Change]) -> str:
        """Apply a transition; gives why the run was ended instead, if it was."""
        ...


class EffectsOnOthers:
    """The effects of runs on other runs of the same engine."""

    def __init__(self, runs: Runs, namespace: str) -> None:
        self._runs = runs
        self._namespace = namespace

    def carry_out(self, record: LoadedRun, effect: Effect) -> None:
        """Carry out one effect of a run on another."""
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
                self._tell_parent(record)
            case NotifySchedule():
                self._runs.awaiting.ended(record)
            case ReleaseClaims():
                self._runs.keeping.run_closed(record.run.run_id)
            case _:
                assert_never(effect)

    # --- children -------------------------------------------------------------------------------------------

    def _start(self, parent: LoadedRun, child: OpenChild) -> None:
        if not parent.run.is_open:
            return
        initiated = child.initiated_event_id
        cause = self._why_not(child)
        if cause is not None:
            self._runs.change(parent, lambda run, now: children.child_not_started(run, initiated, cause, now))
            return
        run_id = self._runs.new_run_id()
        self._runs.open(children.first_event(parent.run, child, run_id, self._runs.clock.now_ns()))
        self._runs.change(parent, lambda run, now: children.child_started(run, initiated, run_id, now))

    def _why_not(self, child: OpenChild) -> h.StartChildFailedCause | None:
        """Why a child cannot start; makes room for it if its policy says so."""
        asked = child.initiated
        if asked.namespace != self._namespace:
            return h.StartChildFailedCause.NAMESPACE_NOT_FOUND
        override = asked.child.versioning_override
        if override is not None and not self._runs.has_version(override, asked.spec.task_queue):
            return h.StartChildFailedCause.INVALID_VERSIONING_OVERRIDE
        try:
            existing = self._runs.current(asked.workflow_id)
        except StorageError as error:
            logger.error("the latest run of workflow %r cannot be read: %s", asked.workflow_id, error)
            return _TAKEN
        if self._runs.keeping.keeps(asked.workflow_id):
            return _TAKEN  # the engine keeps this limit, and a second keeper would give out the same again
        if existing is None:
            return None
        if not existing.run.is_open:
            return None if children.may_reuse(asked.child.id_reuse_policy, existing.run.status) else _TAKEN
        if asked.child.id_reuse_policy is not IdReusePolicy.TERMINATE_IF_RUNNING:
            return _TAKEN
        reason = "TerminateIfRunning WorkflowIdReusePolicy Policy"
        self._runs.change(existing, lambda run, now: children.terminated_by_engine(run, reason, now))
        return None

    def _leave(self, parent: LoadedRun, child: OpenChild) -> None:
        """A parent has closed; its child is found along its runs."""
        policy = child.initiated.child.parent_close_policy
        if policy is ParentClosePolicy.ABANDON:
            return
        target = self._find(child.initiated.workflow_id, "")
        if target is None or not target.run.is_open or target.run.started.first_run_id != child.run_id:
            return
        if not children.is_child_of(target.run, parent.run):
            return  # it was begun by the run that this one was reset from: a server leaves it alone
        if policy is ParentClosePolicy.REQUEST_CANCEL:
            self._runs.change(target, lambda run, now: children.cancelled_by(run, parent.run, "", 0, now))
        else:
            reason = "by parent close policy"
            self._runs.change(target, lambda run, now: children.terminated_by_engine(run, reason, now))

    def _tell_parent(self, record: LoadedRun) -> None:
        started = record.run.started
        parent = self._find(started.parent_workflow_id, started.parent_run_id)
        while parent is not None and parent.run.reset_run_id:  # what was its child is the other run's
            parent = self._find(started.parent_workflow_id, parent.run.reset_run_id)
        initiated = started.parent_initiated_event_id
        child = None if parent is None or not parent.run.is_open else parent.run.children.get(initiated)
        # A parent that was reset may have asked for another child at the event that this one was asked for by.
        if parent is not None and child is not None and child.run_id == started.first_run_id:
            self._runs.change(parent, lambda run, now: children.child_ended(run, initiated, record.run, now))

    # --- others ---------------------------------------------------------------------------------------------

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
        self._runs.change(sender, lambda run, now: children.signal_sent(run, effect, cause, now))
        if message is not None:
            self._runs.keeping.receive(sender, effect.spec.workflow_id, message)

    def _deliver(
        self, sender: LoadedRun, effect: SendSignal, target: LoadedRun | h.ExternalFailedCause
    ) -> h.ExternalFailedCause | None:
        """Give a signal to another run; why it cannot be, if so."""
        if not isinstance(target, LoadedRun):
            return target
        if target.has_signals(self._runs.limits.signals):
            return h.ExternalFailedCause.SIGNAL_COUNT_LIMIT_EXCEEDED
        ended = self._runs.change(
            target, lambda run, now: children.signalled_by(run, sender.run, effect, now)
        )
        return _NOT_FOUND if ended else None  # it had outgrown its limits, and was ended instead

    def _cancel(self, sender: LoadedRun, effect: SendCancel) -> None:
        if not sender.run.is_open:
            return
        target = self._target(sender, effect)
        cause: h.ExternalFailedCause | None = None
        if not isinstance(target, LoadedRun):
            cause = target
        elif target.run.is_open and not _may_reach(sender, target, effect):
            cause = _NOT_FOUND
        elif target.run.is_open:  # one that has closed does not mind
            reason, initiated = effect.spec.reason, effect.initiated_event_id
            self._runs.change(
                target, lambda run, now: children.cancelled_by(run, sender.run, reason, initiated, now)
            )
        self._runs.change(sender, lambda run, now: children.cancel_sent(run, effect, cause, now))

    def _target(
        self, sender: LoadedRun, effect: SendSignal | SendCancel
    ) -> LoadedRun | h.ExternalFailedCause:
        spec = effect.spec
        if spec.namespace != self._namespace:
            return h.ExternalFailedCause.NAMESPACE_NOT_FOUND
        if spec.workflow_id == sender.run.started.workflow_id:
            return _NOT_FOUND  # a workflow cannot reach itself, whichever run is meant: a server's rule
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
