"""Translation of requests to RPCs: for each request, the RPC, its message, and the parser of the answer. Pure.

This module contains the calls that act on workflows, and on activities that complete asynchronously.
`calls_views` contains the calls that only read, and those about worker versions. `calls_schedules` and
`calls_activities` contain the calls about schedules and standalone activities. `connection` sends the messages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import temporalio.api.update.v1 as up
import temporalio.api.workflowservice.v1 as ws
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
from hourglass._temporal.failures import failure_from, put_failure
from hourglass._temporal.protos import (
    payloads_from,
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


def nothing(answer: Any) -> sv.Nothing:
    """Return the result of a call that has none."""
    return sv.Nothing()


class Rpc(NamedTuple):
    """One RPC, identified by the type of its message. `late` is the answer to return after a timeout, for long polls that
    often end without an event. Without `retry`, an unreachable server causes an error immediately and not after `timeout`.
    """

    message: Any
    read: Callable[[Any], Any] = nothing
    timeout: float = ORDINARY
    late: Any = None
    retry: bool = True


class RpcKind(NamedTuple):
    """The name of an RPC, its service, and the class of its answer."""

    name: str
    service: str
    answer: Any


@cache
def rpc_kind(message: Any) -> RpcKind:
    """Return the RPC of a class of messages. `StartActivityRequest` belongs to `start_activity` and `StartActivityResponse`."""
    stem, module = message.__name__.removesuffix("Request"), message.__module__
    return RpcKind(
        name=re.sub(r"(?<!^)(?=[A-Z])", "_", stem).lower(),
        service="operator" if ".operatorservice." in module else "workflow",
        answer=getattr(sys.modules[module], f"{stem}Response"),
    )


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
    calls: Mapping[type[sv.Request[Any]], tuple[Any, Callable[[Any], Any]]],
) -> dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]]:
    """Return translations for requests whose fields all exist in the message, with the parsers of their answers. Raise
    `TypeError` for a field that the message does not have.
    """
    return {request: _sender(request, kind, read) for request, (kind, read) in calls.items()}


def _sender(
    request: type[sv.Request[Any]], kind: Any, read: Callable[[Any], Any]
) -> Callable[[Any, CallScope], Rpc]:
    names, run = _shared_fields(kind, request)
    placed = {*names, *sv.Request.__struct_fields__, *(("workflow_id", "run_id") if run else ())}
    for field in request.__struct_fields__:
        if field not in placed:
            raise TypeError(
                f"{kind.__name__} has no field for {request.__name__}.{field}: write a function for this request"
            )
    return lambda request, scope: Rpc(message_of(kind, request, scope), read)


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
        return Rpc(message, _started)
    message = ws.SignalWithStartWorkflowExecutionRequest()
    put_start(message, request, scope)
    message.signal_name = request.signal_name
    put_payloads(message.signal_input.payloads, request.signal_arguments)
    return Rpc(message, _started)


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


def _started(answer: Any) -> wf.Started:
    return wf.Started(answer.run_id, answer.started)


def signal(request: wf.SignalWorkflow, scope: CallScope) -> Rpc:
    """Send a signal."""
    message = message_of(ws.SignalWorkflowExecutionRequest, request, scope)
    put_payloads(message.input.payloads, request.arguments)
    put_payload_map(message.header.fields, request.headers)
    return Rpc(message)


def query(request: wf.QueryWorkflow, scope: CallScope) -> Rpc:
    """Query a workflow. A worker answers the query."""
    message: Any = ws.QueryWorkflowRequest(namespace=scope.namespace)
    put_execution(message.execution, request.workflow_id, request.run_id)
    message.query.query_type = request.query_name
    put_payloads(message.query.query_args.payloads, request.arguments)
    put_payload_map(message.query.header.fields, request.headers)
    message.query_reject_condition = int(request.reject_condition)
    return Rpc(message, _answered, PATIENT)


def _answered(answer: Any) -> wf.QueryAnswer:
    rejected = wf.WorkflowStatus.UNSPECIFIED
    if answer.HasField("query_rejected"):
        rejected = wf.WorkflowStatus(answer.query_rejected.status)
    return wf.QueryAnswer(payloads_from(answer.query_result.payloads), rejected)


def terminate(request: wf.TerminateWorkflow, scope: CallScope) -> Rpc:
    """Terminate a workflow."""
    message = message_of(ws.TerminateWorkflowExecutionRequest, request, scope)
    put_payloads(message.details.payloads, request.details)
    return Rpc(message)


def update(request: wf.UpdateWorkflow, scope: CallScope) -> Rpc:
    """Request an update. The server delays its answer until the update has reached the requested stage, or for
    20 s.
    """
    return _until_stage(_update_message(request, scope), request)


def poll_update(request: wf.PollUpdate, scope: CallScope) -> Rpc:
    """Wait until an update has reached a stage."""
    message: Any = ws.PollWorkflowExecutionUpdateRequest(
        namespace=scope.namespace, identity=request.identity or scope.identity
    )
    put_execution(message.update_ref.workflow_execution, request.workflow_id, request.run_id)
    message.update_ref.update_id = request.update_id
    message.wait_policy.lifecycle_stage = int(request.wait_stage)
    return _until_stage(message, request)


def _until_stage(message: Any, request: wf.UpdateWorkflow | wf.PollUpdate) -> Rpc:
    open_still = wf.UpdateState(
        update_id=request.update_id, workflow_id=request.workflow_id, run_id=request.run_id
    )
    return Rpc(message, lambda answer: _state(answer, request), LONG_POLL, open_still)


def update_with_start(request: wf.UpdateWithStart, scope: CallScope) -> Rpc:
    """Start a workflow, or use the running one, and update the workflow in the same step."""
    message: Any = ws.ExecuteMultiOperationRequest(namespace=scope.namespace)
    put_start(message.operations.add().start_workflow, request.start, scope)
    message.operations.add().update_workflow.CopyFrom(_update_message(request.update, scope))

    def read(answer: Any) -> wf.UpdateStarted:
        first, second = answer.responses
        return wf.UpdateStarted(
            _started(first.start_workflow), _state(second.update_workflow, request.update)
        )

    return Rpc(message, read, LONG_POLL)


def reset(request: wf.ResetWorkflow, scope: CallScope) -> Rpc:
    """Reset a workflow: start a new run from one of the workflow tasks of a run."""
    message = message_of(ws.ResetWorkflowExecutionRequest, request, scope)
    message.workflow_task_finish_event_id = request.event_id
    if not request.reapply_signals:
        message.reset_reapply_exclude_types.append(ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_SIGNAL)
    if not request.reapply_updates:
        message.reset_reapply_exclude_types.append(ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE)
    return Rpc(message, lambda answer: wf.Started(answer.run_id))


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
    return Rpc(message)


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
    return Rpc(message)


_REACHED, _FAILED = 2, 3  # values of Temporal's FastForwardPollingResult


def wait_for_fast_forward(request: wf.WaitForFastForward, scope: CallScope) -> Rpc:
    """Wait until a fast-forward has completed or failed, also in later runs of the chain."""
    message: Any = ws.PollWorkflowExecutionTimeSkippingRequest(
        namespace=scope.namespace, fast_forward_id=request.fast_forward_id
    )
    put_execution(message.workflow_execution, request.workflow_id, "")

    def read(answer: Any) -> wf.FastForwarded:
        result = answer.fast_forward_polling_result
        over = result in (_REACHED, _FAILED)
        return wf.FastForwarded(over, result == _REACHED, answer.failed_reason)

    return Rpc(message, read, LONG_POLL, wf.FastForwarded(over=False))


def complete(request: ac.CompleteActivity, scope: CallScope) -> Rpc:
    """Complete an activity with the failure of the request, if there is one, or else with its cancellation, or
    else with its result.
    """
    message: Any
    if request.failure is not None:
        message = _addressed(
            ws.RespondActivityTaskFailedRequest, ws.RespondActivityTaskFailedByIdRequest, request, scope
        )
        put_failure(message.failure, request.failure)
        put_payloads(message.last_heartbeat_details.payloads, request.last_heartbeat_details)
    elif request.cancelled:
        message = _addressed(
            ws.RespondActivityTaskCanceledRequest, ws.RespondActivityTaskCanceledByIdRequest, request, scope
        )
        put_payloads(message.details.payloads, request.cancelled_details)
    else:
        message = _addressed(
            ws.RespondActivityTaskCompletedRequest, ws.RespondActivityTaskCompletedByIdRequest, request, scope
        )
        if request.result is not None:
            put_payload(message.result.payloads.add(), request.result)
    return Rpc(message)


def _addressed(
    by_token: Any, by_id: Any, request: ac.CompleteActivity | ac.HeartbeatActivity, scope: CallScope
) -> Any:
    """Return a message about the activity of a request, identified by its token or by its ids."""
    identity = request.identity or scope.identity
    if request.token:
        return by_token(namespace=scope.namespace, identity=identity, task_token=request.token)
    return by_id(
        namespace=scope.namespace,
        identity=identity,
        workflow_id=request.workflow_id,
        run_id=request.run_id,
        activity_id=request.activity_id,
    )


def reset_activity(request: ac.ResetActivity, scope: CallScope) -> Rpc:
    """Reset an activity, so that its attempts start from the first."""
    message = message_of(ws.ResetActivityRequest, request, scope)
    message.id = request.activity_id
    return Rpc(message)


def heartbeat(request: ac.HeartbeatActivity, scope: CallScope) -> Rpc:
    """Send a heartbeat of an activity."""
    message = _addressed(
        ws.RecordActivityTaskHeartbeatRequest, ws.RecordActivityTaskHeartbeatByIdRequest, request, scope
    )
    put_payloads(message.details.payloads, request.details)
    return Rpc(message, lambda answer: ac.HeartbeatAnswer(answer.cancel_requested))


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
    return Rpc(message, lambda answer: taken)


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
            wf.CancelWorkflow: (ws.RequestCancelWorkflowExecutionRequest, nothing),
            wf.PauseWorkflow: (ws.PauseWorkflowExecutionRequest, nothing),
            wf.UnpauseWorkflow: (ws.UnpauseWorkflowExecutionRequest, nothing),
            wf.DeleteWorkflow: (ws.DeleteWorkflowExecutionRequest, nothing),
        }
    ),
}
