"""Calls about an activity that is completed from outside, by its token or by its ids. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws

from hourglass._contract import service as sv
from hourglass._temporal.calls import Call, Scope
from hourglass._temporal.failures import put_failure
from hourglass._temporal.payloads import put_payload, put_payloads

# What is reported -> by token, by ids: RPC and message.
_ENDS: dict[str, tuple[tuple[str, type[Any]], tuple[str, type[Any]]]] = {
    "completed": (
        ("respond_activity_task_completed", ws.RespondActivityTaskCompletedRequest),
        ("respond_activity_task_completed_by_id", ws.RespondActivityTaskCompletedByIdRequest),
    ),
    "failed": (
        ("respond_activity_task_failed", ws.RespondActivityTaskFailedRequest),
        ("respond_activity_task_failed_by_id", ws.RespondActivityTaskFailedByIdRequest),
    ),
    "canceled": (
        ("respond_activity_task_canceled", ws.RespondActivityTaskCanceledRequest),
        ("respond_activity_task_canceled_by_id", ws.RespondActivityTaskCanceledByIdRequest),
    ),
}


def complete(request: sv.CompleteActivity, scope: Scope) -> Call:
    """End an activity: a failure if there is one, then cancellation, then its result."""
    if request.failure is not None:
        rpc, message = _address("failed", request, scope)
        put_failure(message.failure, request.failure)
    elif request.cancelled:
        rpc, message = _address("canceled", request, scope)
        put_payloads(message.details.payloads, request.cancelled_details)
    else:
        rpc, message = _address("completed", request, scope)
        if request.result is not None:
            put_payload(message.result.payloads.add(), request.result)
    return Call(rpc, message, lambda data: sv.Nothing())


def _address(end: str, request: sv.CompleteActivity, scope: Scope) -> tuple[str, Any]:
    rpc, kind = _ENDS[end][0 if request.token else 1]
    message = kind()
    _put_address(message, request, scope)
    return rpc, message


def _put_address(message: Any, request: sv.CompleteActivity | sv.HeartbeatActivity, scope: Scope) -> None:
    message.namespace = scope.namespace
    message.identity = request.identity or scope.identity
    if request.token:
        message.task_token = request.token
        return
    message.workflow_id = request.workflow_id
    message.run_id = request.run_id
    message.activity_id = request.activity_id


def heartbeat(request: sv.HeartbeatActivity, scope: Scope) -> Call:
    """Report that an activity lives."""
    rpc = "record_activity_task_heartbeat"
    message: Any = ws.RecordActivityTaskHeartbeatRequest()
    if not request.token:
        rpc, message = "record_activity_task_heartbeat_by_id", ws.RecordActivityTaskHeartbeatByIdRequest()
    _put_address(message, request, scope)
    put_payloads(message.details.payloads, request.details)
    return Call(rpc, message, _beat)


def _beat(data: bytes) -> sv.HeartbeatAnswer:
    # Both answers have the same fields with the same numbers.
    answer = ws.RecordActivityTaskHeartbeatResponse.FromString(data)
    return sv.HeartbeatAnswer(answer.cancel_requested)
