"""The calls about standalone activities, and the calls that change an activity of any kind: the RPC, its
message, and the parser of the answer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import temporalio.api.workflowservice.v1 as ws

from hourglass._contract import activities as ac
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._temporal.calls import LONG_POLL, CallScope, Rpc, message_of, nothing, put_callbacks, sending
from hourglass._temporal.calls_views import PENDING_STATES, counted, version_in
from hourglass._temporal.failures import failure_from
from hourglass._temporal.protos import (
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
    put_payload_map(message.header.fields, request.headers)
    put_payload_map(message.search_attributes.indexed_fields, request.search_attributes)
    if request.static_summary is not None:
        put_payload(message.user_metadata.summary, request.static_summary)
    if request.static_details is not None:
        put_payload(message.user_metadata.details, request.static_details)
    if request.start_delay:
        put_seconds(message.start_delay, request.start_delay)
    put_callbacks(message, request)
    return Rpc(message, lambda answer: wf.Started(answer.run_id, answer.started))


def wait(request: ac.WaitForActivity, scope: CallScope) -> Rpc:
    """Wait until a standalone activity ends. The server ends the long poll after some time."""
    message = message_of(ws.PollActivityExecutionRequest, request, scope)
    still_open = ac.ActivityOutcome(closed=False)

    def read(answer: Any) -> ac.ActivityOutcome:
        outcome = answer.outcome
        match outcome.WhichOneof("value"):
            case "result":
                return ac.ActivityOutcome(result=payloads_from(outcome.result.payloads))
            case "failure":
                return ac.ActivityOutcome(failure=failure_from(outcome.failure))
            case _:
                return still_open

    return Rpc(message, read, LONG_POLL, still_open)


def describe(request: ac.DescribeActivity, scope: CallScope) -> Rpc:
    """Return the description of a standalone activity."""
    message = message_of(ws.DescribeActivityExecutionRequest, request, scope)
    message.include_input = message.include_heartbeat_details = message.include_last_failure = True
    return Rpc(message, _described)


def _described(answer: Any) -> ac.ActivityDescription:
    info = answer.info
    notes = info.user_metadata
    return ac.ActivityDescription(
        summary=_summary(info),
        spec=ACTIVITY_INFO.get(info),
        state=PENDING_STATES.get(info.run_state, "") if info.run_state else "",
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
    return Rpc(message, lambda answer: ac.ActivityOptionsNow(ACTIVITY_OPTIONS.get(answer.activity_options)))


def _listed(answer: Any) -> ac.ActivityPage:
    return ac.ActivityPage(
        tuple(_summary(execution) for execution in answer.executions), answer.next_page_token
    )


ON_ACTIVITIES: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    ac.StartActivity: start,
    ac.WaitForActivity: wait,
    ac.DescribeActivity: describe,
    ac.UpdateActivityOptions: update_options,
    **sending(
        {
            ac.ListActivities: (ws.ListActivityExecutionsRequest, _listed),
            ac.CountActivities: (ws.CountActivityExecutionsRequest, counted),
            ac.CancelActivity: (ws.RequestCancelActivityExecutionRequest, nothing),
            ac.TerminateActivity: (ws.TerminateActivityExecutionRequest, nothing),
            ac.DeleteActivity: (ws.DeleteActivityExecutionRequest, nothing),
            ac.PauseActivity: (ws.PauseActivityExecutionRequest, nothing),
            ac.UnpauseActivity: (ws.UnpauseActivityExecutionRequest, nothing),
        }
    ),
}
