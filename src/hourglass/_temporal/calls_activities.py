"""The calls about standalone activities, and the calls that change an activity of any kind: the RPC, its
message, and the parser of the answer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import PendingActivityState

from hourglass._contract import activities as ac
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._temporal.calls import LONG_POLL, CallScope, Rpc, message_of, put_callbacks, sending
from hourglass._temporal.calls_deployments import version_in
from hourglass._temporal.calls_views import group_from
from hourglass._temporal.protos import (
    failure_from,
    nanos_from,
    payload_from,
    payload_map_from,
    payloads_from,
    put_payload,
    put_payload_map,
    put_payloads,
    put_seconds,
)
from hourglass._temporal.specs import ACTIVITY_INFO, ACTIVITY_OPTIONS, ACTIVITY_START

_STATES: dict[int, str] = {
    number: name.removeprefix("PENDING_ACTIVITY_STATE_") for name, number in PendingActivityState.items()
}


def start(request: ac.StartActivity, scope: CallScope) -> Rpc:
    """Start a standalone activity."""
    message: Any = ws.StartActivityExecutionRequest(
        namespace=scope.namespace,
        identity=request.identity or scope.identity,
        request_id=request.request_id,
        activity_id=request.activity_id,
    )
    message.activity_type.name = request.activity_type
    message.id_reuse_policy = int(request.id_reuse_policy)
    message.id_conflict_policy = int(request.id_conflict_policy)
    ACTIVITY_START.put(message, request.spec)
    put_payloads(message.input.payloads, request.arguments)
    if request.headers:
        put_payload_map(message.header.fields, request.headers)
    if request.search_attributes:
        put_payload_map(message.search_attributes.indexed_fields, request.search_attributes)
    if request.static_summary is not None:
        put_payload(message.user_metadata.summary, request.static_summary)
    if request.static_details is not None:
        put_payload(message.user_metadata.details, request.static_details)
    if request.start_delay:
        put_seconds(message.start_delay, request.start_delay)
    put_callbacks(message, request)

    def read(data: bytes) -> wf.Started:
        answer = ws.StartActivityExecutionResponse.FromString(data)
        return wf.Started(answer.run_id, answer.started)

    return Rpc("start_activity_execution", message, read)


def wait(request: ac.WaitForActivity, scope: CallScope) -> Rpc:
    """Wait until a standalone activity ends. The server ends the long poll after some time."""
    message = message_of(ws.PollActivityExecutionRequest, request, scope)
    still_open = ac.ActivityOutcome(closed=False)

    def read(data: bytes) -> ac.ActivityOutcome:
        outcome: Any = ws.PollActivityExecutionResponse.FromString(data).outcome
        match outcome.WhichOneof("value"):
            case "result":
                return ac.ActivityOutcome(result=payloads_from(outcome.result.payloads))
            case "failure":
                return ac.ActivityOutcome(failure=failure_from(outcome.failure))
            case _:
                return still_open

    return Rpc("poll_activity_execution", message, read, LONG_POLL, still_open)


def describe(request: ac.DescribeActivity, scope: CallScope) -> Rpc:
    """Return the description of a standalone activity."""
    message = ws.DescribeActivityExecutionRequest(
        namespace=scope.namespace,
        activity_id=request.activity_id,
        run_id=request.run_id,
        include_input=True,
        include_heartbeat_details=True,
        include_last_failure=True,
    )
    return Rpc("describe_activity_execution", message, _described)


def _described(data: bytes) -> ac.ActivityDescription:
    answer: Any = ws.DescribeActivityExecutionResponse.FromString(data)
    info = answer.info
    notes = info.user_metadata
    return ac.ActivityDescription(
        summary=_summary(info),
        spec=ACTIVITY_INFO.get(info),
        state=_STATES.get(info.run_state, "") if info.run_state else "",
        attempt=info.attempt,
        arguments=payloads_from(answer.input.payloads),
        heartbeat_details=payloads_from(info.heartbeat_details.payloads),
        last_heartbeat_time_ns=nanos_from(info.last_heartbeat_time),
        last_started_time_ns=nanos_from(info.last_started_time),
        last_worker_identity=info.last_worker_identity,
        last_failure=failure_from(info.last_failure) if info.HasField("last_failure") else None,
        next_attempt_time_ns=nanos_from(info.next_attempt_schedule_time),
        canceled_reason=info.canceled_reason,
        version=version_in(info, "last_deployment_version"),
        static_summary=payload_from(notes.summary) if notes.HasField("summary") else None,
        static_details=payload_from(notes.details) if notes.HasField("details") else None,
    )


def _summary(info: Any) -> ac.ActivitySummary:
    return ac.ActivitySummary(
        activity_id=info.activity_id,
        run_id=info.run_id,
        activity_type=info.activity_type.name,
        status=ac.ActivityExecutionStatus(info.status),
        task_queue=info.task_queue,
        schedule_time_ns=nanos_from(info.schedule_time),
        close_time_ns=nanos_from(info.close_time),
        search_attributes={
            name: payload
            for name, payload in payload_map_from(info.search_attributes.indexed_fields).items()
            if name
            != "TemporalNamespaceDivision"  # marks standalone activities among workflows in a server's data
        },
    )


_PATHS = {
    "task_queue": "task_queue.name",
    "priority_key": "priority",
    "fairness_key": "priority",
    "fairness_weight": "priority",
}


def update_options(request: ac.UpdateActivityOptions, scope: CallScope) -> Rpc:
    """Change the options of an activity."""
    message = message_of(ws.UpdateActivityExecutionOptionsRequest, request, scope)
    if not request.restore_original:
        ACTIVITY_OPTIONS.put(message.activity_options, request.spec)
        message.update_mask.paths.extend(dict.fromkeys(_PATHS.get(name, name) for name in request.fields))

    def read(data: bytes) -> ac.ActivityOptionsNow:
        answer = ws.UpdateActivityExecutionOptionsResponse.FromString(data)
        return ac.ActivityOptionsNow(ACTIVITY_OPTIONS.get(answer.activity_options))

    return Rpc("update_activity_execution_options", message, read)


def list_activities(request: ac.ListActivities, scope: CallScope) -> Rpc:
    """Return a page of standalone activities."""
    message = message_of(ws.ListActivityExecutionsRequest, request, scope)

    def read(data: bytes) -> ac.ActivityPage:
        answer = ws.ListActivityExecutionsResponse.FromString(data)
        return ac.ActivityPage(
            tuple(_summary(execution) for execution in answer.executions), answer.next_page_token
        )

    return Rpc("list_activity_executions", message, read)


def count(request: ac.CountActivities, scope: CallScope) -> Rpc:
    """Return the number of matching standalone activities."""
    message = ws.CountActivityExecutionsRequest(namespace=scope.namespace, query=request.query)
    return Rpc("count_activity_executions", message, _counted)


def _counted(data: bytes) -> wf.Count:
    answer = ws.CountActivityExecutionsResponse.FromString(data)
    return wf.Count(answer.count, tuple(group_from(group) for group in answer.groups))


ON_ACTIVITIES: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    ac.StartActivity: start,
    ac.WaitForActivity: wait,
    ac.DescribeActivity: describe,
    ac.UpdateActivityOptions: update_options,
    ac.ListActivities: list_activities,
    ac.CountActivities: count,
    **sending(
        {
            ac.CancelActivity: ws.RequestCancelActivityExecutionRequest,
            ac.TerminateActivity: ws.TerminateActivityExecutionRequest,
            ac.DeleteActivity: ws.DeleteActivityExecutionRequest,
            ac.PauseActivity: ws.PauseActivityExecutionRequest,
            ac.UnpauseActivity: ws.UnpauseActivityExecutionRequest,
        }
    ),
}
