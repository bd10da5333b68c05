"""A history divided into workflow tasks, each with the events that it delivered and the commands that it issued,
and the rules that every server's history follows. Pure. Invariants of `tasks_of`:

- Tasks that failed or timed out are left out. The next completed task delivers the events before them.
- A command belongs to the last completed task before it. This follows from its position, not from the task number in
  its event, because test servers number tasks differently. Immediate results of a command (an activity cancelled before
  it started) may occur between commands.
- A history that ends within a task has a last task with unknown commands.

The rules (`check`): Event ids count from 1. There is one workflow task at a time: it is scheduled, started, and then
completed, failed or timed out. The event of a command refers to the completed task that issued the command. The event
of a command's outcome refers to the event of the command, and there is only one outcome. No event follows the end of
the run. The rules are checked because Core trusts histories: some invalid histories make Core panic, and others make
it hang. A `HistoryError` contains the id of the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from hourglass._history import events as h
from hourglass._history.shapes import snake
from hourglass.converter import Failure
from hourglass.errors import HistoryError, RetryState

MARKERS: frozenset[type[h.Attributes]] = frozenset(
    {h.MarkerRecorded, h.LocalActivityMarkerRecorded, h.ForeignMarkerRecorded}
)

_ANSWERS: frozenset[type[h.Attributes]] = frozenset(
    {h.WorkflowExecutionUpdateAccepted, h.WorkflowExecutionUpdateCompleted}
)

_OF_TASKS: frozenset[type[h.Attributes]] = frozenset(
    kind for kind in (*h.KINDS, *h.FOREIGN_KINDS) if "task_completed_event_id" in kind.__struct_fields__
)

COMMAND_EVENTS = (_OF_TASKS | _ANSWERS) - MARKERS
"""The kinds of events that commands lead to, except markers. These events contain the id of the task that issued the
command, unless they answer updates.
"""


class WorkflowTask(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow task of a history."""

    new_events: tuple[h.HistoryEvent, ...]
    command_events: tuple[h.HistoryEvent, ...] = ()
    markers: tuple[h.HistoryEvent, ...] = ()
    time_ns: int = 0
    history_length: int = 0
    history_size: int = 0
    suggest_continue_as_new: bool = False
    is_completed: bool = True

    @property
    def updates(self) -> tuple[h.WorkflowExecutionUpdateAccepted, ...]:
        """The updates that were accepted in this task. The task also delivered them."""
        return tuple(
            event.attributes
            for event in self.command_events
            if isinstance(event.attributes, h.WorkflowExecutionUpdateAccepted)
        )


def tasks_of(events: Sequence[h.HistoryEvent]) -> list[WorkflowTask]:
    """Return the workflow tasks of a history, in order. Raise `HistoryError` if a command belongs to no completed task."""
    tasks: list[WorkflowTask] = []
    new_events: list[h.HistoryEvent] = []
    started: h.HistoryEvent | None = None
    position = 0
    while position < len(events):
        event = events[position]
        position += 1
        kind = type(event.attributes)
        if kind is h.WorkflowTaskStarted:
            started = event
        elif kind is h.WorkflowTaskFailed or kind is h.WorkflowTaskTimedOut:
            started = None
            new_events += _delivered(event)
        elif kind is h.WorkflowTaskCompleted and started is not None:
            command_events, markers, between, position = _commands_of(events, position)
            tasks.append(_task(new_events, started, command_events, markers))
            new_events, started = between, None
        elif kind in COMMAND_EVENTS:
            raise HistoryError(
                f"event {event.id} ({_snake(event.attributes)}) needs a completed workflow task before it, but the "
                "history contains none"
            )
        else:
            new_events += _delivered(event)
    if started is not None:
        tasks.append(_task(new_events, started))
    return tasks


def _task(
    new_events: list[h.HistoryEvent],
    started: h.HistoryEvent,
    command_events: list[h.HistoryEvent] | None = None,
    markers: Iterable[h.HistoryEvent] = (),
) -> WorkflowTask:
    attributes = started.attributes
    assert isinstance(attributes, h.WorkflowTaskStarted)
    return WorkflowTask(
        new_events=tuple(new_events),
        command_events=tuple(command_events or ()),
        markers=tuple(markers),
        time_ns=started.time_ns,
        history_length=started.id,
        history_size=attributes.history_size,
        suggest_continue_as_new=attributes.suggest_continue_as_new,
        is_completed=command_events is not None,
    )


def _commands_of(
    events: Sequence[h.HistoryEvent], position: int
) -> tuple[list[h.HistoryEvent], list[h.HistoryEvent], list[h.HistoryEvent], int]:
    """Return the command events of a task, its markers, the events between them, and the position of the next task."""
    command_events: list[h.HistoryEvent] = []
    markers: list[h.HistoryEvent] = []
    between: list[h.HistoryEvent] = []
    while position < len(events):
        event = events[position]
        kind = type(event.attributes)
        if kind is h.WorkflowTaskStarted:
            break
        if kind in MARKERS:
            markers.append(event)
        elif kind not in COMMAND_EVENTS:
            between += _delivered(event)
        elif kind is h.WorkflowExecutionContinuedAsNew:
            command_events.append(
                msgspec.structs.replace(event, attributes=normalize_run_end(event.attributes))
            )
        elif not is_patch_index(event.attributes):
            command_events.append(event)
        position += 1
    return command_events, markers, between, position


def _delivered(event: h.HistoryEvent) -> Sequence[h.HistoryEvent]:
    return (event,) if type(event.attributes) in _DELIVERED else ()


def _snake(attributes: h.Attributes) -> str:
    if isinstance(attributes, h.UnknownEvent):
        return attributes.name.lower()
    return snake(h.kind_of(attributes))


def is_patch_index(attributes: h.Attributes) -> bool:
    """Whether an event is a change of search attributes that the SDK itself made to record a version or patch."""
    return isinstance(attributes, h.UpsertWorkflowSearchAttributes) and set(attributes.search_attributes) == {
        h.PATCHES
    }


def normalize_run_end(attributes: h.Attributes) -> h.Attributes:
    """Return the event that ends a run, in current terms. Early servers recorded retries and cron runs as
    continue-as-new.
    """
    if not isinstance(attributes, h.WorkflowExecutionContinuedAsNew):
        return attributes
    again, task = attributes.initiator, attributes.task_completed_event_id
    failure = attributes.failure
    if again is h.Initiator.RETRY or (again is h.Initiator.CRON_SCHEDULE and failure is not None):
        return h.WorkflowExecutionFailed(
            failure=failure or Failure(), retry_state=RetryState.IN_PROGRESS, task_completed_event_id=task
        )
    if again is h.Initiator.CRON_SCHEDULE:
        results = attributes.last_completion_result
        return h.WorkflowExecutionCompleted(
            result=results[0] if results else h.NO_RESULT, task_completed_event_id=task
        )
    return attributes


# The events that start an operation (an activity, a timer, …), each with the kind of operation.
_OPENS: dict[type[h.Attributes], str] = {
    h.ActivityTaskScheduled: "activity",
    h.TimerStarted: "timer",
    h.StartChildWorkflowExecutionInitiated: "child workflow",
    h.SignalExternalWorkflowExecutionInitiated: "signal to another workflow",
    h.RequestCancelExternalWorkflowExecutionInitiated: "cancel request",
    h.NexusOperationScheduled: "Nexus operation",
}

# The events that report progress of an operation: its kind, and the field with the id of the event that started it.
_CONTINUES: dict[type[h.Attributes], tuple[str, str]] = {
    h.ActivityTaskStarted: ("activity", "scheduled_event_id"),
    h.ActivityTaskCancelRequested: ("activity", "scheduled_event_id"),
    h.ChildWorkflowExecutionStarted: ("child workflow", "initiated_event_id"),
    h.NexusOperationStarted: ("Nexus operation", "scheduled_event_id"),
    h.NexusOperationCancelRequested: ("Nexus operation", "scheduled_event_id"),
}

# The events that report the outcome of an operation, in the same form.
_ENDS: dict[type[h.Attributes], tuple[str, str]] = {
    **dict.fromkeys(h.ATTEMPT_ENDS, ("activity", "scheduled_event_id")),
    h.TimerFired: ("timer", "started_event_id"),
    h.TimerCanceled: ("timer", "started_event_id"),
    h.StartChildWorkflowExecutionFailed: ("child workflow", "initiated_event_id"),
    h.ChildWorkflowExecutionCompleted: ("child workflow", "initiated_event_id"),
    h.ChildWorkflowExecutionFailed: ("child workflow", "initiated_event_id"),
    h.ChildWorkflowExecutionCanceled: ("child workflow", "initiated_event_id"),
    h.ChildWorkflowExecutionTimedOut: ("child workflow", "initiated_event_id"),
    h.ChildWorkflowExecutionTerminated: ("child workflow", "initiated_event_id"),
    h.ExternalWorkflowExecutionSignaled: ("signal to another workflow", "initiated_event_id"),
    h.SignalExternalWorkflowExecutionFailed: ("signal to another workflow", "initiated_event_id"),
    h.ExternalWorkflowExecutionCancelRequested: ("cancel request", "initiated_event_id"),
    h.RequestCancelExternalWorkflowExecutionFailed: ("cancel request", "initiated_event_id"),
    h.NexusOperationCompleted: ("Nexus operation", "scheduled_event_id"),
    h.NexusOperationFailed: ("Nexus operation", "scheduled_event_id"),
    h.NexusOperationCanceled: ("Nexus operation", "scheduled_event_id"),
    h.NexusOperationTimedOut: ("Nexus operation", "scheduled_event_id"),
}

_FROM_OUTSIDE: frozenset[type[h.Attributes]] = frozenset(
    {
        h.WorkflowExecutionStarted,
        h.WorkflowTaskFailed,
        h.WorkflowExecutionSignaled,
        h.WorkflowExecutionCancelRequested,
        h.WorkflowExecutionUpdateAdmitted,
    }
)

_DELIVERED = _FROM_OUTSIDE.union(_CONTINUES, _ENDS) - COMMAND_EVENTS - {h.ActivityTaskStarted}
"""The kinds of events that a run is notified of: events from outside, and the outcomes of its commands."""

_STEPS: dict[type[h.Attributes], tuple[str, tuple[str, ...]]] = {
    h.WorkflowTaskScheduled: ("scheduled", ("none",)),
    h.WorkflowTaskStarted: ("started", ("scheduled",)),
    h.WorkflowTaskCompleted: ("completed", ("started",)),
    h.WorkflowTaskFailed: ("failed", ("scheduled", "started")),
    h.WorkflowTaskTimedOut: ("timed out", ("scheduled", "started")),
}
"""The state of a workflow task after each kind of event, and the states that are allowed before the event."""

_AFTER_START = (
    h.WorkflowTaskCompleted,
    h.WorkflowTaskFailed,
    h.WorkflowTaskTimedOut,
    h.WorkflowExecutionTerminated,
    h.WorkflowExecutionTimedOut,
)


def check(events: Sequence[h.HistoryEvent], *, of_core: bool = True) -> None:
    """Raise `HistoryError` for the first event that no server would have written at its position.

    If `of_core` is false, the history is never passed to Core. The task that an event refers to is then not checked,
    because the test servers of other SDKs number tasks differently.
    """
    _check_order(events)
    tasks = _Tasks()
    open_operations: dict[int, str] = {}
    updates: set[str] = set()
    end = 0
    for event in events:
        kind = type(event.attributes)
        if end:
            raise HistoryError(f"event {event.id} follows event {end}, which closed the run")
        if kind in _STEPS:
            tasks.take(event)
        elif kind in _OPENS:
            open_operations[event.id] = _OPENS[kind]
        elif kind in _CONTINUES:
            _follow(event, *_CONTINUES[kind], open_operations)
        elif kind in _ENDS:
            del open_operations[_follow(event, *_ENDS[kind], open_operations)]
        elif kind in _ANSWERS:
            _check_answer(event, updates)
        elif kind in h.FINAL:
            end = event.id
        if of_core:
            tasks.check_origin(event)


def _check_answer(event: h.HistoryEvent, answered: set[str]) -> None:
    update_id: str = event.attributes.update_id  # type: ignore[attr-defined]
    if isinstance(event.attributes, h.WorkflowExecutionUpdateAccepted) and update_id in answered:
        raise HistoryError(
            f"event {event.id} accepts update {update_id!r}, but an earlier event has already accepted or completed "
            "this update"
        )
    answered.add(update_id)


def _check_order(events: Sequence[h.HistoryEvent]) -> None:
    for at, event in enumerate(events, 1):
        kind = type(event.attributes)
        if event.id != at:
            raise HistoryError(f"event {at} of the history has the event id {event.id}")
        if at > 1 and kind is h.WorkflowExecutionStarted:
            raise HistoryError(f"event {at} is a second WorkflowExecutionStarted")
        # Core's replay worker panics on any other event, and then never responds.
        if kind is h.WorkflowTaskStarted and at < len(events):
            _check_after_start(events[at])


def _check_after_start(event: h.HistoryEvent) -> None:
    if not isinstance(event.attributes, _AFTER_START):
        raise HistoryError(f"event {event.id} must not follow WorkflowTaskStarted")


def check_start(event: h.HistoryEvent) -> None:
    """Raise `HistoryError` if an event cannot be the first event of a history."""
    started = event.attributes
    if not isinstance(started, h.WorkflowExecutionStarted):
        raise HistoryError("a history must begin with WorkflowExecutionStarted")
    for what, is_present in (
        ("workflow type (workflowType)", started.workflow_type),
        ("task queue (taskQueue)", started.spec.task_queue),
        ("run id (originalExecutionRunId)", started.original_run_id),
    ):
        if not is_present:
            raise HistoryError(f"the first event of the history has no {what}")


def _follow(event: h.HistoryEvent, kind_name: str, field: str, open_operations: dict[int, str]) -> int:
    origin: int = getattr(event.attributes, field)
    if open_operations.get(origin) != kind_name:
        raise HistoryError(
            f"event {event.id} refers to the {kind_name} of event {origin}, but event {origin} started no {kind_name} that is "
            "still open"
        )
    return origin


class _Tasks:
    """The state of the workflow tasks of a history, one at a time."""

    def __init__(self) -> None:
        self._state = "none"
        self._scheduled = 0
        self._started = 0
        self._completed: set[int] = set()

    def take(self, event: h.HistoryEvent) -> None:
        """Advance the state by one event. Raise `HistoryError` if the event is not allowed in the current state."""
        attributes = event.attributes
        step, allowed = _STEPS[type(attributes)]
        if self._state not in allowed:
            where = "no workflow task is in progress" if self._state == "none" else f"one is {self._state}"
            raise HistoryError(f"event {event.id}: a workflow task cannot be {step}, because {where}")
        if isinstance(attributes, h.WorkflowTaskScheduled):
            self._state, self._scheduled = "scheduled", event.id
            return
        scheduled: int = getattr(attributes, "scheduled_event_id", 0)
        if scheduled != self._scheduled:
            raise HistoryError(
                f"event {event.id}: the {step} workflow task has scheduledEventId {scheduled}, expected "
                f"{self._scheduled}"
            )
        self._state = "none"
        if isinstance(attributes, h.WorkflowTaskStarted):
            self._state, self._started = "started", event.id
        elif isinstance(attributes, h.WorkflowTaskCompleted):
            self._complete(event.id, attributes.started_event_id)

    def _complete(self, event_id: int, started: int) -> None:
        # Java's test server omits the started event here, and refers to it where other servers refer to the completed
        # event.
        if started not in (self._started, 0):
            raise HistoryError(
                f"event {event_id}: the completed workflow task has startedEventId {started}, expected {self._started}"
            )
        self._completed.add(event_id)
        if not started:
            self._completed.add(self._started)

    def check_origin(self, event: h.HistoryEvent) -> None:
        """Raise `HistoryError` if the event of a command does not refer to a completed task."""
        origin = getattr(event.attributes, "task_completed_event_id", 0)
        if origin and origin not in self._completed:
            raise HistoryError(
                f"event {event.id} has workflowTaskCompletedEventId {origin}, but event {origin} is not a completed "
                "workflow task"
            )
