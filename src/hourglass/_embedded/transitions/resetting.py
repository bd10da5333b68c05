"""Resets: a new run continues from a workflow task of another run. Pure.

Must not know: how runs are found, what happens to the run that is replaced. As on a Temporal server, the new run has the
history of the old run up to that task, which fails in the new run. Events that arrived later from outside are sent to
the new run again, in order: signals, updates (as admitted), and the outcomes of children that had been started before.
`rebuild` creates the run that results from the retained events. Pending activities are scheduled again, at their first
attempt and with their full timeouts. Timers keep their due times.

Invariants: the old run's history is never changed. For a history that the engine has written, `rebuild` returns exactly
the pending work that the engine had at that point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from hourglass._contract.workflows import ResetWorkflow, WorkflowStatus
from hourglass._embedded.clock import later
from hourglass._embedded.transitions import problems
from hourglass._embedded.transitions.change_builder import ChangeBuilder
from hourglass._embedded.transitions.run import (
    ApplyClosePolicy,
    Change,
    Effect,
    NotifyParent,
    OpenActivity,
    OpenChild,
    PendingTask,
    PendingTimer,
    Run,
    SendCancel,
    SendSignal,
    StartChild,
)
from hourglass._embedded.transitions.versioning import PINNED, UNSPECIFIED
from hourglass._history import events as h
from hourglass._history.encoding import encode_events
from hourglass.converter import Failure, Payload, ResetFailure
from hourglass.errors import ServiceError


class _Rebuilt:
    """The pending activities, timers, children and effects after the events read so far."""

    def __init__(self, started: h.WorkflowExecutionStarted, now_ns: int) -> None:
        self.now_ns = now_ns
        self.memo = dict(started.spec.memo)
        self.search_attributes = dict(started.spec.search_attributes)
        self.activities: dict[int, OpenActivity] = {}
        self.timers: dict[int, PendingTimer] = {}
        self.children: dict[int, OpenChild] = {}
        self.effects: dict[int, Effect] = {}
        self.task: PendingTask | None = None
        self.task_count = 0
        self.cancel_requested = False
        self.version = started.inherited_pinned_version
        self.behavior = PINNED if self.version is not None else UNSPECIFIED

    def read(self, event: h.HistoryEvent) -> None:
        attributes = event.attributes
        match attributes:
            case (
                h.WorkflowTaskScheduled()
                | h.WorkflowTaskStarted()
                | h.WorkflowTaskCompleted()
                | h.WorkflowTaskFailed()
                | h.WorkflowTaskTimedOut()
            ):
                self._read_task(event)
            case h.WorkflowExecutionCancelRequested():
                self.cancel_requested = True
            case h.UpsertWorkflowSearchAttributes(search_attributes=changes):
                _merge(self.search_attributes, changes)
            case h.WorkflowPropertiesModified(memo=changes):
                _merge(self.memo, changes)
            case h.TimerStarted():
                due = later(event.time_ns, attributes.duration_ns)
                self.timers[event.id] = PendingTimer(attributes.timer_id, event.id, due, event.time_ns)
            case h.TimerFired() | h.TimerCanceled():
                self.timers.pop(attributes.started_event_id, None)
            case _:
                self._read_activity(event)
                self._read_other(event)

    def _read_task(self, event: h.HistoryEvent) -> None:
        match event.attributes:
            case h.WorkflowTaskScheduled():
                self.task_count += 1
                self.task = PendingTask(
                    number=self.task_count, scheduled_event_id=event.id, available_ns=event.time_ns
                )
            case h.WorkflowTaskStarted() as started if self.task is not None:
                self.task = msgspec.structs.replace(
                    self.task,
                    started_event_id=event.id,
                    started_ns=event.time_ns,
                    identity=started.identity,
                )
            case h.WorkflowTaskCompleted() as completed:
                self.task, self.version, self.behavior = None, completed.version, completed.behavior
            case _:
                self.task = None

    def _read_activity(self, event: h.HistoryEvent) -> None:
        attributes = event.attributes
        match attributes:
            case h.ActivityTaskScheduled():
                self.activities[event.id] = OpenActivity(
                    scheduled_event_id=event.id,
                    scheduled=attributes,
                    spec=attributes.spec,
                    scheduled_ns=self.now_ns,
                    available_ns=self.now_ns,
                )
            case h.ActivityTaskCancelRequested():
                activity = self.activities.get(attributes.scheduled_event_id)
                if activity is not None:
                    self.activities[attributes.scheduled_event_id] = msgspec.structs.replace(
                        activity, cancel_requested_event_id=event.id
                    )
            case (
                h.ActivityTaskCompleted()
                | h.ActivityTaskFailed()
                | h.ActivityTaskTimedOut()
                | h.ActivityTaskCanceled()
            ):
                self.activities.pop(attributes.scheduled_event_id, None)
            case _:
                pass

    def _read_other(self, event: h.HistoryEvent) -> None:
        attributes = event.attributes
        match attributes:
            case h.StartChildWorkflowExecutionInitiated():
                self.children[event.id] = OpenChild(initiated_event_id=event.id, initiated=attributes)
            case h.ChildWorkflowExecutionStarted(initiated_event_id=initiated):
                self.children[initiated] = msgspec.structs.replace(
                    self.children[initiated], run_id=attributes.run_id, started_event_id=event.id
                )
            case h.StartChildWorkflowExecutionFailed() | h.ChildEnd():
                self.children.pop(attributes.initiated_event_id, None)
            case h.SignalExternalWorkflowExecutionInitiated():
                self.effects[event.id] = SendSignal(event.id, attributes)
            case h.RequestCancelExternalWorkflowExecutionInitiated():
                self.effects[event.id] = SendCancel(event.id, attributes)
            case (
                h.SignalExternalWorkflowExecutionFailed()
                | h.ExternalWorkflowExecutionSignaled()
                | h.RequestCancelExternalWorkflowExecutionFailed()
                | h.ExternalWorkflowExecutionCancelRequested()
            ):
                self.effects.pop(attributes.initiated_event_id, None)
            case _:
                pass


def rebuild(run_id: str, events: Sequence[h.HistoryEvent], now_ns: int) -> tuple[Run, tuple[Effect, ...]]:
    """Return the run that results from these events, and the effects on other runs that have no outcome yet."""
    started = events[0].attributes
    if not isinstance(started, h.WorkflowExecutionStarted):
        raise ValueError("the history does not begin with WorkflowExecutionStarted")
    rebuilt = _Rebuilt(started, now_ns)
    for event in events:
        rebuilt.read(event)
    run = Run(
        run_id=run_id,
        started=started,
        start_ns=now_ns,
        length=len(events),
        latest_ns=max(event.time_ns for event in events),
        history_size=len(encode_events(tuple(events))),
        task=rebuilt.task,
        task_count=rebuilt.task_count,
        activities=rebuilt.activities,
        timers=rebuilt.timers,
        children=rebuilt.children,
        memo=rebuilt.memo,
        search_attributes=rebuilt.search_attributes,
        cancel_requested=rebuilt.cancel_requested,
        version=rebuilt.version,
        behavior=rebuilt.behavior,
    )
    return run, tuple(rebuilt.effects.values())


def _merge(merged: dict[str, Payload], changes: dict[str, Payload]) -> None:
    merged.update(changes)
    for name in [name for name, value in merged.items() if value.encoding == "binary/null"]:
        del merged[name]


ENGINE = "history-service"
RESETTER = "history-resetter"
"""The identity with which the engine terminates a run that is reset. Temporal uses the same name."""


def reset(
    base: Run,
    history: Sequence[h.HistoryEvent],
    request: ResetWorkflow,
    later: Iterable[h.Attributes],
    new_run_id: str,
    now_ns: int,
) -> Change:
    """Return the change that opens the new run. `later` are the events of the runs that follow the base run.

    Raise `ServiceError` for an event at which no run can start.
    """
    point = request.event_id
    if not 1 < point <= len(history):
        raise _invalid_argument("Workflow task finish ID must be > 1 && <= workflow last event ID.")
    events = tuple(history[: point - 1])
    run, effects = rebuild(new_run_id, events, now_ns)
    if run.task is None:
        raise _invalid_argument(
            "Can only reset workflow to event ID in range [WorkflowTaskScheduled +1, WorkflowTaskStarted + 1]: "
            f"{point}"
        )
    builder = ChangeBuilder(run, now_ns)
    _fail_task(builder, base.run_id, request.reason)
    dropped = [event.attributes for event in history[point - 1 :]]
    for attributes in again((*dropped, *base.held, *later), request):
        builder.write_again(attributes)
    builder.want_task()
    change = builder.build()
    return msgspec.structs.replace(
        change,
        events=(*events, *change.events),
        encoded=encode_events(events) + change.encoded,
        touched=frozenset((*change.run.activities, *change.run.timers, *change.run.children)),
        effects=(*effects, *_missing_children(change.run)),
    )


def begin_with(history: Sequence[h.HistoryEvent], workflow_id: str, new_run_id: str, now_ns: int) -> Change:
    """Open a run of this workflow id with an existing history, and continue at its end. If a worker had a task at the
    end, the task is scheduled again.

    Raise `ServiceError` for a history that another run cannot continue.
    """
    started = history[0].attributes if history else None
    if not isinstance(started, h.WorkflowExecutionStarted):
        raise _invalid_argument("the history does not begin with WorkflowExecutionStarted")
    if any(event.id != place for place, event in enumerate(history, 1)):
        raise _invalid_argument("the event ids of the history must be consecutive numbers, starting at 1")
    foreign = next((event for event in history if not isinstance(event.attributes, h.KINDS)), None)
    if foreign is not None:
        raise _invalid_argument(
            f"the embedded engine does not support {type(foreign.attributes).__name__} (event {foreign.id})"
        )
    if isinstance(history[-1].attributes, h.FINAL):
        raise _invalid_argument("the workflow of this history has already closed")
    # The new run keeps `original_run_id`, from which the random numbers of workflow code are derived, so that the code
    # repeats its earlier decisions.
    begun = msgspec.structs.replace(
        started,
        workflow_id=workflow_id,
        first_run_id=new_run_id,
        continued_run_id="",
        parent_namespace="",
        parent_workflow_id="",
        parent_run_id="",
        parent_initiated_event_id=0,
        root_workflow_id="",
        root_run_id="",
    )
    events = (msgspec.structs.replace(history[0], attributes=begun), *history[1:])
    run, effects = rebuild(new_run_id, events, now_ns)
    if run.children:
        child = next(iter(run.children.values())).initiated.workflow_id
        raise _invalid_argument(
            f"the run waits for its child workflow {child!r}, which cannot be moved with it"
        )
    if effects:
        raise _invalid_argument(
            "the run waits for the outcome of a signal or cancel request to another workflow, which cannot be moved with it"
        )
    builder = ChangeBuilder(run, now_ns)
    if run.task_is_started:
        _fail_task(builder, started.original_run_id, "the run is continued as another run")
        builder.want_task()
    change = builder.build()
    return msgspec.structs.replace(
        change,
        events=(*events, *change.events),
        encoded=encode_events(events) + change.encoded,
        touched=frozenset((*change.run.activities, *change.run.timers)),
    )


def again(events: Iterable[h.Attributes], request: ResetWorkflow) -> Iterator[h.Attributes]:
    """Yield the events that must be sent to the new run."""
    for attributes in events:
        match attributes:
            case h.WorkflowExecutionSignaled() if request.reapply_signals:
                yield attributes
            case h.WorkflowExecutionUpdateAdmitted() if request.reapply_updates:
                yield attributes
            case h.WorkflowExecutionUpdateAccepted(request=h.UpdateRequest() as asked) if (
                request.reapply_updates
            ):
                yield h.WorkflowExecutionUpdateAdmitted(request=asked)
            case h.ChildWorkflowExecutionStarted() | h.StartChildWorkflowExecutionFailed() | h.ChildEnd():
                yield attributes
            case _:
                pass


def terminate_replaced(run: Run, reason: str, new_run_id: str, now_ns: int) -> Change:
    """Terminate an open run because a new run replaces it.

    Children that the new run also has now belong to the new run, which also notifies the parent when it closes. As on a
    server, other children keep running, whatever their parent close policies are.
    """
    builder = ChangeBuilder(run, now_ns)
    builder.close(h.WorkflowExecutionTerminated(reason=reason, identity=RESETTER), WorkflowStatus.TERMINATED)
    builder.update(reset_run_id=new_run_id)
    change = builder.build()
    return msgspec.structs.replace(
        change,
        effects=tuple(
            effect for effect in change.effects if not isinstance(effect, (ApplyClosePolicy, NotifyParent))
        ),
    )


def note_reset(run: Run, new_run_id: str, now_ns: int) -> Change:
    """Record that a closed run was reset. Requests for it then go to the run that replaced it."""
    builder = ChangeBuilder(run, now_ns)
    builder.update(reset_run_id=new_run_id)
    return builder.build()


def _fail_task(builder: ChangeBuilder, base_run_id: str, reason: str) -> None:
    task = builder.run.task
    assert task is not None
    started = task.started_event_id or builder.write(
        h.WorkflowTaskStarted(
            scheduled_event_id=task.scheduled_event_id,
            identity=ENGINE,
            history_size=builder.measure(),
        )
    )
    builder.write(
        h.WorkflowTaskFailed(
            scheduled_event_id=task.scheduled_event_id,
            started_event_id=started,
            cause=h.RESET_WORKFLOW,
            failure=Failure(reason, ResetFailure()),
            identity=ENGINE,
            base_run_id=base_run_id,
            new_run_id=builder.run.run_id,
        )
    )
    problems.note_failure(builder, task, h.RESET_WORKFLOW, is_told=True)
    builder.update(task=None)


def _missing_children(run: Run) -> tuple[Effect, ...]:
    """Return the starts of children that were requested but whose outcome is not in the history."""
    return tuple(StartChild(child) for child in run.children.values() if not child.run_id)


def _invalid_argument(message: str) -> ServiceError:
    return ServiceError(message, status="INVALID_ARGUMENT")
