"""The plan of an import: whether a history can be reproduced on a server, and the workflow tasks that reproduce
it. Pure.

Events that cannot be reproduced are rejected before the start: children, updates, activities that timed out,
messages to other workflows. `normal` returns a comparable form of a history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from hourglass.errors import ServiceError


def kind_of(name: str) -> EventType.ValueType:
    """Return the event type of this name."""
    return EventType.Value(f"EVENT_TYPE_{name}")


COMMANDS: dict[int, str] = {
    kind_of("ACTIVITY_TASK_SCHEDULED"): "schedule_activity_task",
    kind_of("ACTIVITY_TASK_CANCEL_REQUESTED"): "request_cancel_activity_task",
    kind_of("TIMER_STARTED"): "start_timer",
    kind_of("TIMER_CANCELED"): "cancel_timer",
    kind_of("MARKER_RECORDED"): "record_marker",
    kind_of("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES"): "upsert_workflow_search_attributes",
    kind_of("WORKFLOW_PROPERTIES_MODIFIED"): "modify_workflow_properties",
}
"""The event types that result from a command of the workflow, each with the name of the command."""


def _kinds_of(*names: str) -> frozenset[int]:
    return frozenset(map(kind_of, names))


ENDS = _kinds_of("ACTIVITY_TASK_COMPLETED", "ACTIVITY_TASK_FAILED", "ACTIVITY_TASK_CANCELED")
"""The events that end an activity and that an import can reproduce."""

_INPUTS = ENDS | _kinds_of(
    "WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_EXECUTION_CANCEL_REQUESTED", "TIMER_FIRED"
)
"""Events delivered to a run that an import can reproduce."""

_IGNORED = _kinds_of(
    "WORKFLOW_EXECUTION_STARTED",
    "WORKFLOW_TASK_SCHEDULED",
    "WORKFLOW_TASK_STARTED",
    "WORKFLOW_TASK_FAILED",
    "WORKFLOW_TASK_TIMED_OUT",
    "ACTIVITY_TASK_STARTED",
    "WORKFLOW_EXECUTION_PAUSED",
    "WORKFLOW_EXECUTION_UNPAUSED",
    "WORKFLOW_EXECUTION_OPTIONS_UPDATED",
)
COMPLETED = kind_of("WORKFLOW_TASK_COMPLETED")
SCHEDULED = kind_of("ACTIVITY_TASK_SCHEDULED")
TIMER = kind_of("TIMER_STARTED")

_REASONS = {
    "CHILD": "the workflow started a child workflow",
    "EXTERNAL": "the workflow sent a signal or a cancel request to another workflow",
    "UPDATE": "the workflow received an update",
    "NEXUS": "the workflow called a Nexus operation",
    "ACTIVITY_TASK_TIMED_OUT": "one of its activities timed out",
}


@dataclass
class PlannedTask:
    """One workflow task: the events delivered before it, and the events of the commands that it issued."""

    inputs: list[HistoryEvent]
    completed: HistoryEvent | None = None
    issued: list[HistoryEvent] = field(default_factory=list)


def plan(history: History) -> list[PlannedTask]:
    """Split a history into workflow tasks. Raise `ServiceError` if an import cannot reproduce the history.

    The last task is not completed, because its events are for the worker that continues the run.
    """
    first = history.events[0] if history.events else HistoryEvent()
    if first.WhichOneof("attributes") != "workflow_execution_started_event_attributes":
        raise not_importable("it does not begin with WorkflowExecutionStarted")
    if first.workflow_execution_started_event_attributes.cron_schedule:
        raise not_importable(
            "cron workflows cannot be imported; start the workflow on the server, and its next run will start on schedule"
        )
    tasks = [PlannedTask([])]
    for event in history.events:
        kind = event.event_type
        if kind in _INPUTS and not _was_never_started(event):
            tasks[-1].inputs.append(event)
        elif kind == COMPLETED:
            tasks[-1].completed = event
            tasks.append(PlannedTask([]))
        elif kind in COMMANDS and len(tasks) > 1:
            tasks[-2].issued.append(event)
        elif kind not in _IGNORED and kind not in _INPUTS:
            raise not_importable(_reason(kind))
    return tasks


def _was_never_started(event: HistoryEvent) -> bool:
    """Whether an activity was cancelled before it started: the server writes this event when cancellation is requested."""
    return (
        event.event_type == kind_of("ACTIVITY_TASK_CANCELED")
        and not event.activity_task_canceled_event_attributes.started_event_id
    )


def _reason(kind: EventType.ValueType) -> str:
    name = EventType.Name(kind).removeprefix("EVENT_TYPE_")
    return next(
        (words for part, words in _REASONS.items() if part in name),
        f"the workflow has already closed ({name})",
    )


def not_importable(why: str) -> ServiceError:
    """Return the error for a history that cannot be imported."""
    return ServiceError(
        f"a server cannot continue this history: {why}. Let the workflow finish where it runs, or start it again on the "
        "server",
        status="FAILED_PRECONDITION",
    )


def normal(history: History) -> list[tuple[Any, ...]]:
    """Return a history as comparable data: for each task, its inputs and the events of the commands that it
    issued.
    """
    activities = {
        event.event_id: event.activity_task_scheduled_event_attributes.activity_id
        for event in history.events
        if event.event_type == SCHEDULED
    }

    def event_key(event: HistoryEvent) -> tuple[int, str]:
        attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
        return (
            (event.event_type, activities.get(attributes.scheduled_event_id, ""))
            if event.event_type in ENDS
            else subject_of(event)
        )

    return [
        (task.completed is not None, tuple(map(event_key, task.inputs)), tuple(map(event_key, task.issued)))
        for task in plan(history)
    ]


def is_equal(imported: History, source: History) -> bool:
    """Whether two runs have the same inputs and issued the same commands, task by task."""
    try:
        return normal(imported) == normal(source)
    except ServiceError:  # a run has continued with events that no import can reproduce
        return False


def subject_of(event: HistoryEvent) -> tuple[int, str]:
    """Return an event's type and the name or id that it carries."""
    attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
    for field_name in ("activity_id", "timer_id", "marker_name", "signal_name"):
        if value := getattr(attributes, field_name, ""):
            return event.event_type, str(value)
    return event.event_type, ""
