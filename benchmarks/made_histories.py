"""Hand-built histories of sequential activities, as a Temporal server would record them."""

from __future__ import annotations

import json

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.client import WorkflowHistory

_START = 1_700_000_000


class _Writer:
    """Writer of history events, one millisecond apart."""

    def __init__(self) -> None:
        self.history = History()

    def add(self, name: str) -> HistoryEvent:
        event = self.history.events.add()
        number = len(self.history.events)
        event.event_id = number
        event.event_type = EventType.Value("EVENT_TYPE_" + name)
        event.event_time.CopyFrom(Timestamp(seconds=_START + number // 1000, nanos=number % 1000 * 1_000_000))
        event.task_id = number
        return event

    def add_workflow_task(self) -> int:
        """Add the events of a workflow task. Return the event id of its completion."""
        scheduled = self.add("WORKFLOW_TASK_SCHEDULED")
        scheduled.workflow_task_scheduled_event_attributes.task_queue.name = "bench"
        scheduled.workflow_task_scheduled_event_attributes.attempt = 1
        started = self.add("WORKFLOW_TASK_STARTED")
        started.workflow_task_started_event_attributes.scheduled_event_id = scheduled.event_id
        completed = self.add("WORKFLOW_TASK_COMPLETED")
        attributes = completed.workflow_task_completed_event_attributes
        attributes.scheduled_event_id = scheduled.event_id
        attributes.started_event_id = started.event_id
        return completed.event_id

    def add_activity(self, number: int, task: int) -> None:
        """Add the events of an activity, from scheduling to completion."""
        scheduled = self.add("ACTIVITY_TASK_SCHEDULED")
        schedule = scheduled.activity_task_scheduled_event_attributes
        schedule.activity_id = str(number + 1)
        schedule.activity_type.name = "echo"
        schedule.task_queue.name = "bench"
        schedule.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
        schedule.input.payloads.add().CopyFrom(_payload(number))
        schedule.start_to_close_timeout.seconds = 30
        schedule.workflow_task_completed_event_id = task
        started = self.add("ACTIVITY_TASK_STARTED")
        started.activity_task_started_event_attributes.scheduled_event_id = scheduled.event_id
        completed = self.add("ACTIVITY_TASK_COMPLETED")
        result = completed.activity_task_completed_event_attributes
        result.scheduled_event_id = scheduled.event_id
        result.started_event_id = started.event_id
        result.result.payloads.add().CopyFrom(_payload(number))


def sequence_history(steps: int) -> WorkflowHistory:
    """Return the history of `Sequence` with this number of steps."""
    writer = _Writer()
    started = writer.add("WORKFLOW_EXECUTION_STARTED").workflow_execution_started_event_attributes
    started.workflow_type.name = "Sequence"
    started.workflow_id = f"sequence-{steps}"
    started.task_queue.name = "bench"
    started.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    started.input.payloads.add().CopyFrom(_payload(steps))
    started.original_execution_run_id = started.first_execution_run_id = (
        "00000000-0000-4000-8000-000000000000"
    )
    started.workflow_task_timeout.seconds = 10
    started.attempt = 1
    for number in range(steps):
        writer.add_activity(number, writer.add_workflow_task())
    task = writer.add_workflow_task()
    completed = writer.add("WORKFLOW_EXECUTION_COMPLETED").workflow_execution_completed_event_attributes
    completed.workflow_task_completed_event_id = task
    completed.result.payloads.add().CopyFrom(_payload(sum(range(steps))))
    return WorkflowHistory(started.workflow_id, list(writer.history.events))


def _payload(value: int) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())
