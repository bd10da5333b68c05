"""Calls that act on a workflow: start, signal, query, cancel, terminate. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws

from hourglass._contract import service as sv
from hourglass._temporal.calls import PATIENT, Call, Scope, put_execution
from hourglass._temporal.calls_deployments import put_override
from hourglass._temporal.payloads import (
    payloads_from,
    put_payload,
    put_payload_map,
    put_payloads,
    put_retry_rule,
    put_seconds,
)


def start(request: sv.StartWorkflow, scope: Scope) -> Call:
    """Start a workflow, or start and signal it in one step."""
    message: Any
    if not request.signal_name:
        message = ws.StartWorkflowExecutionRequest()
        put_start(message, request, scope)
        return Call("start_workflow_execution", message, _started)
    message = ws.SignalWithStartWorkflowExecutionRequest()
    put_start(message, request, scope)
    message.signal_name = request.signal_name
    put_payloads(message.signal_input.payloads, request.signal_arguments)
    return Call("signal_with_start_workflow_execution", message, _signalled)


def put_start(message: Any, request: sv.StartWorkflow, scope: Scope) -> None:
    """Write a start into a message that begins a workflow."""
    message.namespace = scope.namespace
    message.workflow_id = request.workflow_id
    message.workflow_type.name = request.workflow_type
    message.task_queue.name = request.task_queue
    message.request_id = request.request_id
    message.identity = request.identity or scope.identity
    put_payloads(message.input.payloads, request.arguments)
    message.workflow_id_reuse_policy = int(request.id_reuse_policy)
    message.workflow_id_conflict_policy = int(request.id_conflict_policy)
    message.cron_schedule = request.cron_schedule
    for field, seconds in (
        ("workflow_execution_timeout", request.execution_timeout),
        ("workflow_run_timeout", request.run_timeout),
        ("workflow_task_timeout", request.task_timeout),
        ("workflow_start_delay", request.start_delay),
    ):
        if seconds is not None:
            put_seconds(getattr(message, field), seconds)
    if request.retry_policy is not None:
        put_retry_rule(message.retry_policy, request.retry_policy)
    if request.priority_key:
        message.priority.priority_key = request.priority_key
    if request.versioning_override is not None:
        put_override(message.versioning_override, request.versioning_override)
    _put_extras(message, request)


def _put_extras(message: Any, request: sv.StartWorkflow) -> None:
    if request.memo:
        put_payload_map(message.memo.fields, request.memo)
    if request.search_attributes:
        put_payload_map(message.search_attributes.indexed_fields, request.search_attributes)
    if request.headers:
        put_payload_map(message.header.fields, request.headers)
    if request.static_summary is not None:
        put_payload(message.user_metadata.summary, request.static_summary)
    if request.static_details is not None:
        put_payload(message.user_metadata.details, request.static_details)


def _started(data: bytes) -> sv.Started:
    answer = ws.StartWorkflowExecutionResponse.FromString(data)
    return sv.Started(answer.run_id, answer.started)


def _signalled(data: bytes) -> sv.Started:
    answer = ws.SignalWithStartWorkflowExecutionResponse.FromString(data)
    return sv.Started(answer.run_id, answer.started)


def _nothing(data: bytes) -> sv.Nothing:
    return sv.Nothing()


def signal(request: sv.SignalWorkflow, scope: Scope) -> Call:
    """Send a signal."""
    message: Any = ws.SignalWorkflowExecutionRequest(
        namespace=scope.namespace,
        signal_name=request.signal_name,
        request_id=request.request_id,
        identity=request.identity or scope.identity,
    )
    put_execution(message.workflow_execution, request.workflow_id, request.run_id)
    put_payloads(message.input.payloads, request.arguments)
    if request.headers:
        put_payload_map(message.header.fields, request.headers)
    return Call("signal_workflow_execution", message, _nothing)


def query(request: sv.QueryWorkflow, scope: Scope) -> Call:
    """Ask a question, which a worker answers."""
    message: Any = ws.QueryWorkflowRequest(namespace=scope.namespace)
    put_execution(message.execution, request.workflow_id, request.run_id)
    message.query.query_type = request.query_name
    put_payloads(message.query.query_args.payloads, request.arguments)
    if request.headers:
        put_payload_map(message.query.header.fields, request.headers)
    message.query_reject_condition = int(request.reject_condition)
    return Call("query_workflow", message, _answered, PATIENT)


def _answered(data: bytes) -> sv.QueryAnswer:
    answer = ws.QueryWorkflowResponse.FromString(data)
    rejected = sv.WorkflowStatus.UNSPECIFIED
    if answer.HasField("query_rejected"):
        rejected = sv.WorkflowStatus(answer.query_rejected.status)
    return sv.QueryAnswer(payloads_from(answer.query_result.payloads), rejected)


def cancel(request: sv.CancelWorkflow, scope: Scope) -> Call:
    """Ask a workflow to cancel."""
    message: Any = ws.RequestCancelWorkflowExecutionRequest(
        namespace=scope.namespace,
        identity=request.identity or scope.identity,
        request_id=request.request_id,
        first_execution_run_id=request.first_execution_run_id,
        reason=request.reason,
    )
    put_execution(message.workflow_execution, request.workflow_id, request.run_id)
    return Call("request_cancel_workflow_execution", message, _nothing)


def terminate(request: sv.TerminateWorkflow, scope: Scope) -> Call:
    """End a workflow now."""
    message: Any = ws.TerminateWorkflowExecutionRequest(
        namespace=scope.namespace,
        identity=request.identity or scope.identity,
        first_execution_run_id=request.first_execution_run_id,
        reason=request.reason,
    )
    put_execution(message.workflow_execution, request.workflow_id, request.run_id)
    if request.details:
        put_payloads(message.details.payloads, request.details)
    return Call("terminate_workflow_execution", message, _nothing)
