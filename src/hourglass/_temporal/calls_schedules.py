"""Calls about schedules: create, describe, update, patch, delete, list. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws

from hourglass._contract import schedules as sc
from hourglass._contract import service as sv
from hourglass._temporal import schedule_messages as messages
from hourglass._temporal.calls import PATIENT, Call, Scope
from hourglass._temporal.payloads import nanos_from, payload_map_from, put_nanos, put_payload_map


def create(request: sc.CreateSchedule, scope: Scope) -> Call:
    """Create a schedule."""
    message: Any = ws.CreateScheduleRequest(
        namespace=scope.namespace,
        schedule_id=request.schedule_id,
        request_id=request.request_id,
        identity=request.identity or scope.identity,
    )
    messages.put_schedule(message.schedule, request.schedule)
    if request.trigger_immediately:
        message.initial_patch.trigger_immediately.SetInParent()
    _put_backfill(message.initial_patch, request.backfill)
    if request.memo:
        put_payload_map(message.memo.fields, request.memo)
    if request.search_attributes:
        put_payload_map(message.search_attributes.indexed_fields, request.search_attributes)
    return Call("create_schedule", message, _nothing)


def describe(request: sc.DescribeSchedule, scope: Scope) -> Call:
    """Look at a schedule; the server asks a worker of its own."""
    message = ws.DescribeScheduleRequest(namespace=scope.namespace, schedule_id=request.schedule_id)

    def read(data: bytes) -> sc.ScheduleDescription:
        answer = ws.DescribeScheduleResponse.FromString(data)
        return sc.ScheduleDescription(
            schedule_id=request.schedule_id,
            schedule=messages.schedule_from(answer.schedule),
            info=messages.info_from(answer.info),
            memo=payload_map_from(answer.memo.fields),
            search_attributes=payload_map_from(answer.search_attributes.indexed_fields),
            conflict_token=answer.conflict_token,
        )

    return Call("describe_schedule", message, read, PATIENT)


def update(request: sc.UpdateSchedule, scope: Scope) -> Call:
    """Replace a schedule. A server ignores an update whose token is stale without saying so."""
    message: Any = ws.UpdateScheduleRequest(
        namespace=scope.namespace,
        schedule_id=request.schedule_id,
        conflict_token=request.conflict_token,
        request_id=request.request_id,
        identity=request.identity or scope.identity,
    )
    messages.put_schedule(message.schedule, request.schedule)
    return Call("update_schedule", message, _nothing)


def patch(request: sc.PatchSchedule, scope: Scope) -> Call:
    """Trigger, backfill, pause or unpause."""
    message: Any = ws.PatchScheduleRequest(
        namespace=scope.namespace,
        schedule_id=request.schedule_id,
        request_id=request.request_id,
        identity=request.identity or scope.identity,
    )
    if request.trigger is not None:
        trigger = message.patch.trigger_immediately
        trigger.SetInParent()
        trigger.overlap_policy = int(request.trigger)
    _put_backfill(message.patch, request.backfill)
    message.patch.pause = request.pause or ""
    message.patch.unpause = request.unpause or ""
    return Call("patch_schedule", message, _nothing)


def delete(request: sc.DeleteSchedule, scope: Scope) -> Call:
    """Delete a schedule."""
    message = ws.DeleteScheduleRequest(
        namespace=scope.namespace,
        schedule_id=request.schedule_id,
        identity=request.identity or scope.identity,
    )
    return Call("delete_schedule", message, _nothing)


def listing(request: sc.ListSchedules, scope: Scope) -> Call:
    """List a page of schedules."""
    message = ws.ListSchedulesRequest(
        namespace=scope.namespace,
        maximum_page_size=request.page_size,
        next_page_token=request.next_page_token,
        query=request.query,
    )
    return Call("list_schedules", message, _listed)


def _listed(data: bytes) -> sc.SchedulePage:
    answer = ws.ListSchedulesResponse.FromString(data)
    return sc.SchedulePage(tuple(_summary(entry) for entry in answer.schedules), answer.next_page_token)


def _summary(entry: Any) -> sc.ScheduleSummary:
    info = entry.info
    return sc.ScheduleSummary(
        schedule_id=entry.schedule_id,
        workflow_type=info.workflow_type.name,
        paused=info.paused,
        note=info.notes,
        spec=messages.spec_from(info.spec),
        recent_actions=tuple(messages.action_from(action) for action in info.recent_actions),
        next_times_ns=tuple(nanos_from(time) for time in info.future_action_times),
        memo=payload_map_from(entry.memo.fields),
        search_attributes=payload_map_from(entry.search_attributes.indexed_fields),
    )


def _put_backfill(patch: Any, backfills: tuple[sc.Backfill, ...]) -> None:
    for backfill in backfills:
        message = patch.backfill_request.add()
        put_nanos(message.start_time, backfill.start_ns)
        put_nanos(message.end_time, backfill.end_ns)
        message.overlap_policy = int(backfill.overlap)


def _nothing(data: bytes) -> sv.Nothing:
    return sv.Nothing()
