"""Activity tasks as data, their results and heartbeats as bytes. Pure."""

from __future__ import annotations

from typing import Any, assert_never

from temporalio.bridge.proto import ActivityHeartbeat, ActivityTaskCompletion
from temporalio.bridge.proto.activity_task import ActivityCancelReason
from temporalio.bridge.proto.activity_task import ActivityTask as TaskMessage

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityCancelled,
    ActivityDeferred,
    ActivityFailed,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
)
from hourglass._engine.events import Payloads
from hourglass._temporal.failures import put_failure
from hourglass._temporal.payloads import (
    nanos_from,
    payload_map_from,
    payloads_from,
    put_payload,
    put_payloads,
    retry_rule_from,
    seconds_from,
)

_REASONS: dict[int, str] = {number: name for name, number in ActivityCancelReason.items()}


def activity_item_from_proto(data: bytes, task_queue: str = "") -> ActivityItem | None:
    """Read what an activity poll gave; None for a kind that we do not know. Core does not name the queue."""
    message: Any = TaskMessage.FromString(data)
    match message.WhichOneof("variant"):
        case "start":
            return _task(message.task_token, message.start, task_queue)
        case "cancel":
            number = message.cancel.reason
            return ActivityCancel(message.task_token, _REASONS.get(number, str(number)))
        case _:
            return None


def _task(token: bytes, start: Any, task_queue: str) -> ActivityTask:
    return ActivityTask(
        token=token,
        activity_id=start.activity_id,
        activity_type=start.activity_type,
        arguments=payloads_from(start.input),
        attempt=start.attempt,
        is_local=start.is_local,
        namespace=start.workflow_namespace,
        task_queue=task_queue,
        workflow_id=start.workflow_execution.workflow_id,
        run_id=start.workflow_execution.run_id,
        workflow_type=start.workflow_type,
        headers=payload_map_from(start.header_fields),
        heartbeat_details=payloads_from(start.heartbeat_details),
        scheduled_time_ns=nanos_from(start.scheduled_time),
        current_attempt_scheduled_time_ns=nanos_from(start.current_attempt_scheduled_time),
        started_time_ns=nanos_from(start.started_time),
        schedule_to_close_timeout=seconds_from(start.schedule_to_close_timeout),
        start_to_close_timeout=seconds_from(start.start_to_close_timeout),
        heartbeat_timeout=seconds_from(start.heartbeat_timeout),
        retry_policy=retry_rule_from(start.retry_policy) if start.HasField("retry_policy") else None,
        priority_key=start.priority.priority_key,
    )


def activity_result_to_proto(result: ActivityResult) -> bytes:
    """Write the end of an attempt."""
    message: Any = ActivityTaskCompletion(task_token=result.token)
    out = message.result
    match result:
        case ActivityOk():
            out.completed.SetInParent()
            if result.result is not None:
                put_payload(out.completed.result, result.result)
        case ActivityFailed():
            put_failure(out.failed.failure, result.failure)
        case ActivityCancelled():
            put_failure(out.cancelled.failure, result.failure)
        case ActivityDeferred():
            out.will_complete_async.SetInParent()
        case _:
            assert_never(result)
    data: bytes = message.SerializeToString()
    return data


def heartbeat_to_proto(token: bytes, details: Payloads) -> bytes:
    """Write a heartbeat."""
    message: Any = ActivityHeartbeat(task_token=token)
    put_payloads(message.details, details)
    data: bytes = message.SerializeToString()
    return data
