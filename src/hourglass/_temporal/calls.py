"""Translation of requests to RPCs: for each request, the RPC, its message, and the parser of the answer. Pure.

This module contains the calls that act on workflows, and on activities that complete asynchronously.
`calls_views` contains the calls that only read. `calls_schedules`, `calls_activities` and `calls_deployments`
contain the calls about schedules, standalone activities and worker versions. `connection` sends the messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import temporalio.api.update.v1 as up
import temporalio.api.workflowservice.v1 as ws
from google.protobuf.message import Message
from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import ResetReapplyExcludeType

from hourglass._contract import activities as ac
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._contract.progress import (
    CarriedProgress,
    ProgressTaken,
    PublishProgress,
    carrier,
    without_carrier,
)
from hourglass._temporal.protos import (
    failure_from,
    payloads_from,
    put_failure,
    put_override,
    put_payload,
    put_payload_map,
    put_payloads,
    put_seconds,
)
from hourglass._temporal.specs import START

ORDINARY = 10.0
"""The timeout in seconds of a call that the server answers immediately."""

PATIENT = 30.0
"""The timeout in seconds of a call that a worker must answer."""

LONG_POLL = 65.0
"""The timeout in seconds of a long poll. The server ends a long poll after 20 seconds."""


class CallScope(NamedTuple):
    """The connection's namespace and identity, which every call needs."""

    namespace: str
    identity: str


class Rpc(NamedTuple):
    """One RPC. `late` is the answer to return after a timeout, for long polls that often end without an event.
    Without `retry`, an unreachable server causes an error immediately and not after `timeout`.
    """

    rpc: str
    message: Message
    read: Callable[[bytes], Any]
    timeout: float = ORDINARY
    late: Any = None
    retry: bool = True
    service: str = "workflow"


def message_of(kind: Any, request: sv.Request[Any], scope: CallScope) -> Any:
    """Return a message with the namespace, the identity, the run, and all fields that the message and the
    request have in common.
    """
    names, run = _shared_fields(kind, type(request))
    untyped: Any = request
    message: Any = kind(namespace=scope.namespace, **{name: getattr(untyped, name) for name in names})
    if "identity" in names and not untyped.identity:
        message.identity = scope.identity
    if run:
        put_execution(getattr(message, run), untyped.workflow_id, untyped.run_id)
    return message


@cache
def _shared_fields(kind: Any, request: type[sv.Request[Any]]) -> tuple[tuple[str, ...], str]:
    """Return the plain fields that a message shares with a request, and the name of the message's field for a
    run, or "".
    """
    fields = kind.DESCRIPTOR.fields_by_name
    plain = (
        name for name in request.__struct_fields__ if name in fields and fields[name].message_type is None
    )
    return tuple(plain), next((name for name in ("workflow_execution", "execution") if name in fields), "")


def sending(
    messages: Mapping[type[sv.Request[Any]], Any],
) -> dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]]:
    """Return translations for requests without an answer whose fields all exist in the message. Raise
    `TypeError` for a field that the message does not have.
    """
    return {request: _sender(request, kind) for request, kind in messages.items()}


def _sender(request: type[sv.Request[Any]], kind: Any) -> Callable[[Any, CallScope], Rpc]:
    names, run = _shared_fields(kind, request)
    placed = {*names, *sv.Request.__struct_fields__, *(("workflow_id", "run_id") if run else ())}
    for field in request.__struct_fields__:
        if field not in placed:
            raise TypeError(
                f"{kind.__name__} has no field for {request.__name__}.{field}: write a function for this request"
            )
    rpc = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Request")).lower()
    return lambda request, scope: Rpc(rpc, message_of(kind, request, scope), no_answer)


def no_answer(data: bytes) -> sv.Nothing:
    """Return the result of a call that has none."""
    return sv.Nothing()


def put_execution(execution: Any, workflow_id: str, run_id: str) -> None:
    """Write a workflow id and run id into a message."""
    execution.workflow_id = workflow_id
    execution.run_id = run_id


def start(request: wf.StartWorkflow, scope: CallScope) -> Rpc:
    """Start a workflow, or start and signal it in one step."""
    message: Any
    if not request.signal_name:
        message = ws.StartWorkflowExecutionRequest()
        put_start(message, request, scope)
        put_callbacks(message, request)
        message.request_eager_execution = request.request_eager_start
        return Rpc("start_workflow_execution", message, _started)
    message = ws.SignalWithStartWorkflowExecutionRequest()
    put_start(message, request, scope)
    message.signal_name = request.signal_name
    put_payloads(message.signal_input.payloads, request.signal_arguments)
    return Rpc("signal_with_start_workflow_execution", message, _signalled)


def put_start(message: Any, request: wf.StartWorkflow, scope: CallScope) -> None:
    """Write the options of a start into a message that starts a workflow."""
    message.namespace = scope.namespace
    message.workflow_id = request.workflow_id
    message.workflow_type.name = request.workflow_type
    message.request_id = request.request_id
    message.identity = request.identity or scope.identity
    put_payloads(message.input.payloads, request.arguments)
    message.workflow_id_reuse_policy = int(request.id_reuse_policy)
    message.workflow_id_conflict_policy = int(request.id_conflict_policy)
    START.put(message, request.spec)
    if request.headers:
        put_payload_map(message.header.fields, request.headers)
    if request.start_delay is not None:
        put_seconds(message.workflow_start_delay, request.start_delay)
    if request.versioning_override is not None:
        put_override(message.versioning_override, request.versioning_override)
    if request.time_skipping is not None:
        put_time_skipping(message.time_skipping_config, request.time_skipping)


def put_callbacks(message: Any, request: Any) -> None:
    """Write the callbacks that the server calls when the workflow closes. If an existing workflow is used
    instead, attach the callbacks to that workflow.
    """
    for requested in request.callbacks:
        callback = message.completion_callbacks.add()
        callback.nexus.url = requested.url
        callback.nexus.header.update(requested.headers)
        links = [Link.FromString(link) for link in requested.links]
        callback.links.extend(links)
        message.links.extend(links)
    if request.callbacks and request.id_conflict_policy is wf.IdConflictPolicy.USE_EXISTING:
        attached = message.on_conflict_options
        attached.attach_request_id = attached.attach_completion_callbacks = attached.attach_links = True


def _started(data: bytes) -> wf.Started:
    answer = ws.StartWorkflowExecutionResponse.FromString(data)
    return wf.Started(answer.run_id, answer.started)


def _signalled(data: bytes) -> wf.Started:
    answer = ws.SignalWithStartWorkflowExecutionResponse.FromString(data)
    return wf.Started(answer.run_id, answer.started)


def signal(request: wf.SignalWorkflow, scope: CallScope) -> Rpc:
    """Send a signal."""
    message = message_of(ws.SignalWorkflowExecutionRequest, request, scope)
    put_payloads(message.input.payloads, request.arguments)
    if request.headers:
        put_payload_map(message.header.fields, request.headers)
    return Rpc("signal_workflow_execution", message, no_answer)


def query(request: wf.QueryWorkflow, scope: CallScope) -> Rpc:
    """Query a workflow. A worker answers the query."""
    message: Any = ws.QueryWorkflowRequest(namespace=scope.namespace)
    put_execution(message.execution, request.workflow_id, request.run_id)
    message.query.query_type = request.query_name
    put_payloads(message.query.query_args.payloads, request.arguments)
    if request.headers:
        put_payload_map(message.query.header.fields, request.headers)
    message.query_reject_condition = int(request.reject_condition)
    return Rpc("query_workflow", message, _answered, PATIENT)


def _answered(data: bytes) -> wf.QueryAnswer:
    answer = ws.QueryWorkflowResponse.FromString(data)
    rejected = wf.WorkflowStatus.UNSPECIFIED
    if answer.HasField("query_rejected"):
        rejected = wf.WorkflowStatus(answer.query_rejected.status)
    return wf.QueryAnswer(payloads_from(answer.query_result.payloads), rejected)


def terminate(request: wf.TerminateWorkflow, scope: CallScope) -> Rpc:
    """Terminate a workflow."""
    message = message_of(ws.TerminateWorkflowExecutionRequest, request, scope)
    if request.details:
        put_payloads(message.details.payloads, request.details)
    return Rpc("terminate_workflow_execution", message, no_answer)


def update(request: wf.UpdateWorkflow, scope: CallScope) -> Rpc:
    """Request an update. The server delays its answer until the update has reached the requested stage, or for
    20 s.
    """
    return Rpc(
        "update_workflow_execution",
        _update_message(request, scope),
        lambda data: _state(ws.UpdateWorkflowExecutionResponse.FromString(data), request),
        LONG_POLL,
        _nothing_yet(request),
    )


def poll_update(request: wf.PollUpdate, scope: CallScope) -> Rpc:
    """Wait until an update has reached a stage."""
    message: Any = ws.PollWorkflowExecutionUpdateRequest(
        namespace=scope.namespace, identity=request.identity or scope.identity
    )
    put_execution(message.update_ref.workflow_execution, request.workflow_id, request.run_id)
    message.update_ref.update_id = request.update_id
    message.wait_policy.lifecycle_stage = int(request.wait_stage)
    return Rpc(
        "poll_workflow_execution_update",
        message,
        lambda data: _state(ws.PollWorkflowExecutionUpdateResponse.FromString(data), request),
        LONG_POLL,
        _nothing_yet(request),
    )


def update_with_start(request: wf.UpdateWithStart, scope: CallScope) -> Rpc:
    """Start a workflow, or use the running one, and update the workflow in the same step."""
    message: Any = ws.ExecuteMultiOperationRequest(namespace=scope.namespace)
    put_start(message.operations.add().start_workflow, request.start, scope)
    message.operations.add().update_workflow.CopyFrom(_update_message(request.update, scope))

    def read(data: bytes) -> wf.UpdateStarted:
        first, second = ws.ExecuteMultiOperationResponse.FromString(data).responses
        started = wf.Started(first.start_workflow.run_id, first.start_workflow.started)
        return wf.UpdateStarted(started, _state(second.update_workflow, request.update))

    return Rpc("execute_multi_operation", message, read, LONG_POLL)


def reset(request: wf.ResetWorkflow, scope: CallScope) -> Rpc:
    """Reset a workflow: start a new run from one of the workflow tasks of a run."""
    message = message_of(ws.ResetWorkflowExecutionRequest, request, scope)
    message.workflow_task_finish_event_id = request.event_id
    if not request.reapply_signals:
        message.reset_reapply_exclude_types.append(ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL)
    if not request.reapply_updates:
        message.reset_reapply_exclude_types.append(ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE)
    return Rpc(
        "reset_workflow_execution",
        message,
        lambda data: wf.Started(ws.ResetWorkflowExecutionResponse.FromString(data).run_id),
        ORDINARY,
    )


def _update_message(request: wf.UpdateWorkflow, scope: CallScope) -> Any:
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


def _state(answer: Any, request: wf.UpdateWorkflow | wf.PollUpdate) -> wf.UpdateState:
    outcome = answer.outcome
    kind = outcome.WhichOneof("value")
    payloads = payloads_from(outcome.success.payloads) if kind == "success" else ()
    return wf.UpdateState(
        update_id=answer.update_ref.update_id or request.update_id,
        workflow_id=request.workflow_id,
        run_id=answer.update_ref.workflow_execution.run_id or request.run_id,
        stage=wf.UpdateStage.COMPLETED if kind else wf.UpdateStage(answer.stage),
        result=payloads[0] if payloads else None,
        failure=failure_from(outcome.failure) if kind == "failure" else None,
    )


def _nothing_yet(request: wf.UpdateWorkflow | wf.PollUpdate) -> wf.UpdateState:
    return wf.UpdateState(update_id=request.update_id, workflow_id=request.workflow_id, run_id=request.run_id)


def update_options(request: wf.UpdateWorkflowOptions, scope: CallScope) -> Rpc:
    """Change the options of a run."""
    message = message_of(ws.UpdateWorkflowExecutionOptionsRequest, request, scope)
    options, spec = message.workflow_execution_options, request.spec
    options.SetInParent()
    for name in request.fields:
        message.update_mask.paths.append(name if name == "versioning_override" else f"priority.{name}")
        if name != "versioning_override":
            setattr(options.priority, name, getattr(spec, name))
    if request.versioning_override is not None:
        put_override(options.versioning_override, request.versioning_override)
    return Rpc("update_workflow_execution_options", message, no_answer)


def put_time_skipping(message: Any, config: wf.TimeSkippingConfig) -> None:
    """Write a time skipping configuration."""
    message.enabled = config.enabled
    message.disable_propagation = config.disable_propagation
    message.max_session_skip_count = config.max_session_skip_count


def skip_time(request: wf.SkipTime, scope: CallScope) -> Rpc:
    """Skip the time of a run."""
    message = message_of(ws.UpdateWorkflowExecutionOptionsRequest, request, scope)
    message.update_mask.paths.append("time_skipping_config")
    config = message.workflow_execution_options.time_skipping_config
    put_time_skipping(config, request.config)
    if request.fast_forward_id:
        config.fast_forward_config.id = request.fast_forward_id
        put_seconds(config.fast_forward_config.duration, request.seconds)
    return Rpc("update_workflow_execution_options", message, no_answer)


_REACHED, _FAILED = 2, 3  # values of Temporal's FastForwardPollingResult


def wait_for_fast_forward(request: wf.WaitForFastForward, scope: CallScope) -> Rpc:
    """Wait until a fast-forward has completed or failed, also in later runs of the chain."""
    message: Any = ws.PollWorkflowExecutionTimeSkippingRequest(
        namespace=scope.namespace, fast_forward_id=request.fast_forward_id
    )
    put_execution(message.workflow_execution, request.workflow_id, "")

    def read(data: bytes) -> wf.FastForwarded:
        answer = ws.PollWorkflowExecutionTimeSkippingResponse.FromString(data)
        result = answer.fast_forward_polling_result
        over = result in (_REACHED, _FAILED)
        return wf.FastForwarded(over, result == _REACHED, answer.failed_reason)

    return Rpc(
        "poll_workflow_execution_time_skipping", message, read, LONG_POLL, wf.FastForwarded(over=False)
    )


# For each outcome, the RPC and message that address the activity by token, and those that address it by ids.
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


def complete(request: ac.CompleteActivity, scope: CallScope) -> Rpc:
    """Complete an activity with the failure of the request, if there is one, or else with its cancellation, or
    else with its result.
    """
    if request.failure is not None:
        rpc, message = _address("failed", request, scope)
        put_failure(message.failure, request.failure)
        put_payloads(message.last_heartbeat_details.payloads, request.last_heartbeat_details)
    elif request.cancelled:
        rpc, message = _address("canceled", request, scope)
        put_payloads(message.details.payloads, request.cancelled_details)
    else:
        rpc, message = _address("completed", request, scope)
        if request.result is not None:
            put_payload(message.result.payloads.add(), request.result)
    return Rpc(rpc, message, lambda data: sv.Nothing())


def _address(end: str, request: ac.CompleteActivity, scope: CallScope) -> tuple[str, Any]:
    rpc, kind = _ENDS[end][0 if request.token else 1]
    message = kind()
    _put_address(message, request, scope)
    return rpc, message


def _put_address(message: Any, request: ac.CompleteActivity | ac.HeartbeatActivity, scope: CallScope) -> None:
    message.namespace = scope.namespace
    message.identity = request.identity or scope.identity
    if request.token:
        message.task_token = request.token
        return
    message.workflow_id = request.workflow_id
    message.run_id = request.run_id
    message.activity_id = request.activity_id


def reset_activity(request: ac.ResetActivity, scope: CallScope) -> Rpc:
    """Reset an activity, so that its attempts start from the first."""
    message = message_of(ws.ResetActivityRequest, request, scope)
    message.id = request.activity_id
    return Rpc("reset_activity", message, no_answer)


def heartbeat(request: ac.HeartbeatActivity, scope: CallScope) -> Rpc:
    """Send a heartbeat of an activity."""
    rpc = "record_activity_task_heartbeat"
    message: Any = ws.RecordActivityTaskHeartbeatRequest()
    if not request.token:
        rpc, message = "record_activity_task_heartbeat_by_id", ws.RecordActivityTaskHeartbeatByIdRequest()
    _put_address(message, request, scope)
    put_payloads(message.details.payloads, request.details)
    return Rpc(rpc, message, _beat)


def _beat(data: bytes) -> ac.HeartbeatAnswer:
    # Both answers have the same fields with the same numbers.
    answer = ws.RecordActivityTaskHeartbeatResponse.FromString(data)
    return ac.HeartbeatAnswer(answer.cancel_requested)


PUBLISHING_PAUSE = 0.2
"""The pause in seconds between heartbeats that carry progress. A server writes each heartbeat to disk, so items
are collected during the pause.
"""


def publish(request: PublishProgress, scope: CallScope) -> Rpc:
    """Send an attempt's progress in a heartbeat, in addition to the heartbeat details."""
    message: Any = ws.RecordActivityTaskHeartbeatRequest(
        namespace=scope.namespace, identity=request.identity or scope.identity, task_token=request.token
    )
    carried = carrier(CarriedProgress(request.attempt, request.published))
    put_payloads(message.details.payloads, (*without_carrier(request.details), carried))
    taken = ProgressTaken(pause=PUBLISHING_PAUSE, keeps=False)
    return Rpc("record_activity_task_heartbeat", message, lambda data: taken)


CHANGE_CALLS: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    wf.StartWorkflow: start,
    wf.SignalWorkflow: signal,
    wf.QueryWorkflow: query,
    wf.TerminateWorkflow: terminate,
    wf.UpdateWorkflowOptions: update_options,
    wf.SkipTime: skip_time,
    wf.WaitForFastForward: wait_for_fast_forward,
    ac.CompleteActivity: complete,
    ac.ResetActivity: reset_activity,
    ac.HeartbeatActivity: heartbeat,
    PublishProgress: publish,
    wf.UpdateWorkflow: update,
    wf.PollUpdate: poll_update,
    wf.UpdateWithStart: update_with_start,
    wf.ResetWorkflow: reset,
    **sending(
        {
            wf.CancelWorkflow: ws.RequestCancelWorkflowExecutionRequest,
            wf.PauseWorkflow: ws.PauseWorkflowExecutionRequest,
            wf.UnpauseWorkflow: ws.UnpauseWorkflowExecutionRequest,
            wf.DeleteWorkflow: ws.DeleteWorkflowExecutionRequest,
        }
    ),
}
