"""The plan of an import: whether a history can be reproduced on a server, the workflow tasks that reproduce it, and the
messages: the start of the run, and the command for each event. Pure.

Events that cannot be reproduced are rejected before the start: children, updates, activities that timed out,
messages to other workflows. `normal` returns a comparable form of a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import CommandType, EventType, VersioningBehavior
from temporalio.api.history.v1 import History, HistoryEvent

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import ImportWorkflow
from hourglass._temporal.calls import CallScope
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


DEPLOYMENT = "hourglass-import"
BUILD = new_id()
"""The build id of the imports of this process. It ensures that polls of other processes do not receive tasks of
these imports.
"""


def start_message(request: ImportWorkflow, scope: CallScope, first: HistoryEvent) -> Any:
    """Return the request that starts the run with the options of its first event, pinned to this process."""
    started = first.workflow_execution_started_event_attributes
    message = ws.StartWorkflowExecutionRequest(
        namespace=scope.namespace,
        workflow_id=request.workflow_id,
        workflow_type=started.workflow_type,
        task_queue=started.task_queue,
        input=started.input if started.HasField("input") else None,
        identity=scope.identity,
        request_id=request.request_id,
        workflow_execution_timeout=started.workflow_execution_timeout,
        workflow_run_timeout=started.workflow_run_timeout,
        workflow_task_timeout=started.workflow_task_timeout,
        retry_policy=started.retry_policy if started.HasField("retry_policy") else None,
        memo=started.memo if started.HasField("memo") else None,
        search_attributes=started.search_attributes if started.HasField("search_attributes") else None,
        header=started.header if started.HasField("header") else None,
        priority=started.priority if started.HasField("priority") else None,
    )
    if first.HasField("user_metadata"):
        message.user_metadata.CopyFrom(first.user_metadata)
    pinned: Any = message.versioning_override.pinned
    pinned.behavior = 1  # PINNED_OVERRIDE_BEHAVIOR_PINNED
    pinned.version.deployment_name, pinned.version.build_id = DEPLOYMENT, BUILD
    message.versioning_override.behavior = VersioningBehavior.VERSIONING_BEHAVIOR_PINNED
    message.versioning_override.pinned_version = f"{DEPLOYMENT}.{BUILD}"
    return message


def put_version(options: Any) -> None:
    """Write the version of this process into the options of a poll or a completion."""
    options.deployment_name, options.build_id = DEPLOYMENT, BUILD
    options.worker_versioning_mode = 2  # versioned


class ImportCommands:
    """The commands of an import, one for each event that the workflow issued."""

    def __init__(self, history: History, tasks: Sequence[PlannedTask]) -> None:
        self.private_queue = f"{DEPLOYMENT}-{BUILD}"
        """The task queue without workers on which activities wait for their recorded result."""
        self.scheduled = {event.event_id: event for event in history.events if event.event_type == SCHEDULED}
        inputs = [event for task in tasks for event in task.inputs]
        self.ended = {_scheduled_id(event) for event in inputs if event.event_type in ENDS}
        """The event ids of the activities that the import ends."""
        self.server_ids: dict[int, int] = {}
        """The event ids on the server, by event ids of the source."""

    @property
    def pending_queues(self) -> set[str]:
        """The task queues of the activities that the import does not end."""
        pending = [event for key, event in self.scheduled.items() if key not in self.ended]
        return {event.activity_task_scheduled_event_attributes.task_queue.name for event in pending}

    def command(self, event: HistoryEvent, later: Sequence[PlannedTask]) -> Command:
        """Return the command that leads to this event."""
        name = COMMANDS[event.event_type]
        event_fields: Any = getattr(event, event.WhichOneof("attributes") or "")
        command = Command(command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"))
        command_fields: Any = getattr(command, f"{name}_command_attributes")
        command_fields.SetInParent()
        event_field_names = {field.name for field in event_fields.DESCRIPTOR.fields}
        for place in command_fields.DESCRIPTOR.fields:
            if place.name not in event_field_names or place.name == "scheduled_event_id":
                continue
            value = getattr(event_fields, place.name)
            if place.message_type is None:
                setattr(command_fields, place.name, value)
            elif place.message_type.GetOptions().map_entry:
                for key in value:
                    getattr(command_fields, place.name)[key].CopyFrom(value[key])
            elif event_fields.HasField(place.name):
                getattr(command_fields, place.name).CopyFrom(value)
        if event.HasField("user_metadata"):
            command.user_metadata.CopyFrom(event.user_metadata)
        # Only the author's groups are copied, because the others refer to events by the ids of the source
        # history.
        command.event_group_markers.extend(
            marker for marker in event.event_group_markers if marker.HasField("label")
        )
        if event.event_type == SCHEDULED and event.event_id in self.ended:
            # No worker may execute the activity a second time. It waits on a queue without workers until the
            # import delivers its recorded result.
            command_fields.task_queue.name, command_fields.use_workflow_build_id = self.private_queue, False
            command_fields.retry_policy.maximum_attempts = 1
            for timeout in ("schedule_to_close", "schedule_to_start", "start_to_close", "heartbeat"):
                getattr(command_fields, f"{timeout}_timeout").FromSeconds(3600)
        elif event.event_type == kind_of("ACTIVITY_TASK_CANCEL_REQUESTED"):
            command_fields.scheduled_event_id = self.server_ids.get(event_fields.scheduled_event_id, 0)
        elif event.event_type == TIMER:
            command_fields.start_to_fire_timeout.FromNanoseconds(_timer_ns(event, later))
        return command


def _timer_ns(event: HistoryEvent, later: Sequence[PlannedTask]) -> int:
    """Return the duration of a timer.

    A pending or cancelled timer gets its remaining time. A timer that fired gets a short time that grows with the
    number of inputs before it, so that it fires in its turn.
    """
    timer = event.timer_started_event_attributes
    before = 0
    for task in later:
        for earlier in task.inputs:
            fired_id = earlier.timer_fired_event_attributes.timer_id
            if earlier.event_type == kind_of("TIMER_FIRED") and fired_id == timer.timer_id:
                return int((0.001 if not before else 0.5 + 0.25 * before) * 1e9)
            before += 1
        before += 1
    due = event.event_time.ToNanoseconds() + timer.start_to_fire_timeout.ToNanoseconds()
    return max(due - time_ns(), int((1.0 + 0.25 * before) * 1e9))


def _scheduled_id(event: HistoryEvent) -> int:
    attributes: Any = getattr(event, event.WhichOneof("attributes") or "")
    return int(attributes.scheduled_event_id)
