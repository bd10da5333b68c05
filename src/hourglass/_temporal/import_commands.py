"""The messages of an import: the start of the run, and the command for each event. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from time import time_ns
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.command.v1 import Command
from temporalio.api.enums.v1 import CommandType, VersioningBehavior
from temporalio.api.history.v1 import History, HistoryEvent

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import ImportWorkflow
from hourglass._temporal.calls import CallScope
from hourglass._temporal.import_plan import COMMANDS, ENDS, SCHEDULED, TIMER, PlannedTask, kind_of

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
        for field in command_fields.DESCRIPTOR.fields:
            if field.name not in event_field_names or field.name == "scheduled_event_id":
                continue
            value = getattr(event_fields, field.name)
            if field.message_type is None:
                setattr(command_fields, field.name, value)
            elif field.message_type.GetOptions().map_entry:
                for key in value:
                    getattr(command_fields, field.name)[key].CopyFrom(value[key])
            elif event_fields.HasField(field.name):
                getattr(command_fields, field.name).CopyFrom(value)
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
