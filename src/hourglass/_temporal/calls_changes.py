"""Calls that change a run and wait for its word: updates, update with start, reset. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.update.v1 as up
import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import ResetReapplyExcludeType

from hourglass._contract import service as ch
from hourglass._contract import service as sv
from hourglass._temporal.calls import LONG_POLL, ORDINARY, Call, Scope, put_execution
from hourglass._temporal.calls_workflows import put_start
from hourglass._temporal.failures import failure_from
from hourglass._temporal.payloads import payloads_from, put_payload_map, put_payloads


def update(request: ch.UpdateWorkflow, scope: Scope) -> Call:
    """Ask for an update; the server holds the call open until it has come so far, or for 20 s."""
    return Call(
        "update_workflow_execution",
        _update_message(request, scope),
        lambda data: _state(ws.UpdateWorkflowExecutionResponse.FromString(data), request),
        LONG_POLL,
        _nothing_yet(request),
    )


def poll_update(request: ch.PollUpdate, scope: Scope) -> Call:
    """Wait on for an update."""
    message: Any = ws.PollWorkflowExecutionUpdateRequest(
        namespace=scope.namespace, identity=request.identity or scope.identity
    )
    put_execution(message.update_ref.workflow_execution, request.workflow_id, request.run_id)
    message.update_ref.update_id = request.update_id
    message.wait_policy.lifecycle_stage = int(request.wait_stage)
    return Call(
        "poll_workflow_execution_update",
        message,
        lambda data: _state(ws.PollWorkflowExecutionUpdateResponse.FromString(data), request),
        LONG_POLL,
        _nothing_yet(request),
    )


def update_with_start(request: ch.UpdateWithStart, scope: Scope) -> Call:
    """Start, or use what runs, and update, in one step."""
    message: Any = ws.ExecuteMultiOperationRequest(namespace=scope.namespace)
    put_start(message.operations.add().start_workflow, request.start, scope)
    message.operations.add().update_workflow.CopyFrom(_update_message(request.update, scope))

    def read(data: bytes) -> ch.UpdateStarted:
        first, second = ws.ExecuteMultiOperationResponse.FromString(data).responses
        started = sv.Started(first.start_workflow.run_id, first.start_workflow.started)
        return ch.UpdateStarted(started, _state(second.update_workflow, request.update))

    return Call("execute_multi_operation", message, read, LONG_POLL)


def reset(request: ch.ResetWorkflow, scope: Scope) -> Call:
    """Begin a run anew from one of its workflow tasks."""
    message: Any = ws.ResetWorkflowExecutionRequest(
        namespace=scope.namespace,
        reason=request.reason,
        workflow_task_finish_event_id=request.event_id,
        request_id=request.request_id,
        identity=request.identity or scope.identity,
    )
    put_execution(message.workflow_execution, request.workflow_id, request.run_id)
    if not request.reapply_signals:
        message.reset_reapply_exclude_types.append(ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL)
    if not request.reapply_updates:
        message.reset_reapply_exclude_types.append(ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE)
    return Call(
        "reset_workflow_execution",
        message,
        lambda data: sv.Started(ws.ResetWorkflowExecutionResponse.FromString(data).run_id),
        ORDINARY,
    )


def _update_message(request: ch.UpdateWorkflow, scope: Scope) -> Any:
    message: Any = ws.UpdateWorkflowExecutionRequest(
        namespace=scope.namespace, first_execution_run_id=request.first_execution_run_id
    )
    put_execution(message.workflow_execution, request.workflow_id, request.run_id)
    message.wait_policy.lifecycle_stage = int(request.wait_stage)
    inner: up.Request = message.request
    inner.meta.update_id = request.update_id
    inner.meta.identity = request.identity or scope.identity
    inner.input.name = request.update_name
    put_payloads(inner.input.args.payloads, request.arguments)
    if request.headers:
        put_payload_map(inner.input.header.fields, request.headers)
    return message


def _state(answer: Any, request: ch.UpdateWorkflow | ch.PollUpdate) -> ch.UpdateState:
    outcome = answer.outcome
    kind = outcome.WhichOneof("value")
    payloads = payloads_from(outcome.success.payloads) if kind == "success" else ()
    return ch.UpdateState(
        update_id=answer.update_ref.update_id or request.update_id,
        workflow_id=request.workflow_id,
        run_id=answer.update_ref.workflow_execution.run_id or request.run_id,
        stage=ch.UpdateStage.COMPLETED if kind else ch.UpdateStage(answer.stage),
        result=payloads[0] if payloads else None,
        failure=failure_from(outcome.failure) if kind == "failure" else None,
    )


def _nothing_yet(request: ch.UpdateWorkflow | ch.PollUpdate) -> ch.UpdateState:
    return ch.UpdateState(update_id=request.update_id, workflow_id=request.workflow_id, run_id=request.run_id)
