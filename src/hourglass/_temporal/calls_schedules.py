"""Schedules as protobuf messages, and the calls about them: create, describe, update, patch, delete, list. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo

from hourglass._contract import schedule_specs as ss
from hourglass._contract import schedules as sc
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._contract.cron import FIELDS
from hourglass._temporal.calls import PATIENT, CallScope, Rpc, message_of, nothing, sending
from hourglass._temporal.protos import (
    nanos_from,
    payload_map_from,
    payloads_from,
    put_payload_map,
    put_payloads,
)
from hourglass._temporal.specs import SCHEDULED

# The fields of an action that Hourglass reads and writes. All other fields are preserved in `foreign`,
# including unknown fields of a priority.
_OURS = ("workflow_id", "workflow_type", "input", "header", *(SCHEDULED.names - {"priority"}))


def put_schedule(message: Any, schedule: sc.EngineSchedule) -> None:
    """Write a schedule."""
    put_spec(message.spec, schedule.spec)
    _put_action(message.action.start_workflow, schedule.action, schedule.foreign)
    policy, state = schedule.policy, schedule.state
    message.policies.overlap_policy = int(policy.overlap)
    message.policies.pause_on_failure = policy.pause_on_failure
    message.policies.keep_original_workflow_id = policy.keep_original_workflow_id
    if policy.catchup_window:
        message.policies.catchup_window.FromTimedelta(policy.catchup_window)
    message.state.notes = state.note
    message.state.paused = state.paused
    message.state.limited_actions = state.limited_actions
    message.state.remaining_actions = state.remaining_actions


def put_spec(message: Any, spec: ss.ScheduleSpec) -> None:
    """Write a spec."""
    for calendar in spec.calendars:
        _put_calendar(message.structured_calendar.add(), calendar)
    for calendar in spec.skip:
        _put_calendar(message.exclude_structured_calendar.add(), calendar)
    for interval in spec.intervals:
        written = message.interval.add()
        written.interval.FromTimedelta(interval.every)
        written.phase.FromTimedelta(interval.offset)
    message.cron_string.extend(spec.cron_expressions)
    if spec.start_at is not None:
        message.start_time.FromDatetime(spec.start_at)
    if spec.end_at is not None:
        message.end_time.FromDatetime(spec.end_at)
    if spec.jitter:
        message.jitter.FromTimedelta(spec.jitter)
    message.timezone_name = spec.time_zone_name or ""
    message.timezone_data = spec._time_zone_data


def _put_calendar(message: Any, calendar: ss.ScheduleCalendarSpec) -> None:
    message.comment = calendar.comment
    for field in FIELDS:
        ranges = getattr(message, field.name)
        for numbers in getattr(calendar, field.name):
            ranges.add(start=numbers.start, end=numbers.end, step=numbers.step)


def _put_action(message: Any, action: wf.StartWorkflow, foreign: bytes) -> None:
    if foreign:
        message.MergeFromString(foreign)
    message.workflow_id = action.workflow_id
    message.workflow_type.name = action.workflow_type
    put_payloads(message.input.payloads, action.arguments)
    put_payload_map(message.header.fields, action.headers)
    SCHEDULED.put(message, action.spec)


def schedule_from(message: Any) -> sc.EngineSchedule:
    """Return a schedule from a message."""
    policies, state = message.policies, message.state
    return sc.EngineSchedule(
        action=_action_from(message.action.start_workflow),
        spec=spec_from(message.spec),
        policy=ss.SchedulePolicy(
            overlap=_overlap(policies.overlap_policy),
            catchup_window=policies.catchup_window.ToTimedelta() or None,
            pause_on_failure=policies.pause_on_failure,
            keep_original_workflow_id=policies.keep_original_workflow_id,
        ),
        state=ss.ScheduleState(
            note=state.notes,
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
        foreign=_foreign(message.action.start_workflow),
    )


def spec_from(message: Any) -> ss.ScheduleSpec:
    """Return a spec from a message."""
    return ss.ScheduleSpec(
        calendars=tuple(_calendar_from(calendar) for calendar in message.structured_calendar),
        intervals=tuple(
            ss.ScheduleIntervalSpec(interval.interval.ToTimedelta(), interval.phase.ToTimedelta())
            for interval in message.interval
        ),
        cron_expressions=tuple(message.cron_string),
        skip=tuple(_calendar_from(calendar) for calendar in message.exclude_structured_calendar),
        start_at=_time_from(message.start_time),
        end_at=_time_from(message.end_time),
        jitter=message.jitter.ToTimedelta() or None,
        time_zone_name=message.timezone_name,
        _time_zone_data=message.timezone_data,
    )


def info_from(message: Any) -> ss.ScheduleInfo:
    """Return the past and next actions of a schedule from a message."""
    return ss.ScheduleInfo(
        num_actions=message.action_count,
        num_actions_missed_catchup_window=message.missed_catchup_window,
        num_actions_skipped_overlap=message.overlap_skipped,
        num_actions_dropped=message.buffer_dropped,
        num_actions_waiting=message.buffer_size,
        running_actions=tuple(
            ss.ScheduleActionExecutionStartWorkflow(execution.workflow_id, execution.run_id)
            for execution in message.running_workflows
        ),
        recent_actions=tuple(action_from(action) for action in message.recent_actions),
        next_action_times=_times_from(message.future_action_times),
        created_at=_time_from(message.create_time),
        last_updated_at=_time_from(message.update_time),
    )


def action_from(message: Any) -> ss.ScheduleActionResult:
    """Return one past action from a message."""
    result = message.start_workflow_result
    return ss.ScheduleActionResult(
        scheduled_at=_time_from(message.schedule_time),
        started_at=_time_from(message.actual_time),
        action=ss.ScheduleActionExecutionStartWorkflow(result.workflow_id, result.run_id),
    )


def _time_from(timestamp: Any) -> datetime | None:
    return ss.time_from(nanos_from(timestamp))


def _times_from(timestamps: Iterable[Any]) -> tuple[datetime, ...]:
    return tuple(time for time in map(_time_from, timestamps) if time is not None)


def _overlap(number: int) -> ss.ScheduleOverlapPolicy:
    try:
        return ss.ScheduleOverlapPolicy(number)
    except ValueError:
        return ss.ScheduleOverlapPolicy.UNSPECIFIED  # from a newer server


def _calendar_from(message: Any) -> ss.ScheduleCalendarSpec:
    ranges = {
        field.name: tuple(
            ss.ScheduleRange(numbers.start, numbers.end, numbers.step or 1)
            for numbers in getattr(message, field.name)
        )
        for field in FIELDS
    }
    return ss.ScheduleCalendarSpec(**ranges, comment=message.comment)


def _action_from(message: Any) -> wf.StartWorkflow:
    return wf.StartWorkflow(
        workflow_id=message.workflow_id,
        workflow_type=message.workflow_type.name,
        request_id="",
        arguments=payloads_from(message.input.payloads),
        headers=payload_map_from(message.header.fields),
        spec=SCHEDULED.get(message),
    )


def _foreign(message: Any) -> bytes:
    unread = NewWorkflowExecutionInfo()
    unread.CopyFrom(message)
    for name in _OURS:
        unread.ClearField(name)  # type: ignore[arg-type]
    return unread.SerializeToString()


def create(request: sc.CreateSchedule, scope: CallScope) -> Rpc:
    """Create a schedule."""
    message = message_of(ws.CreateScheduleRequest, request, scope)
    put_schedule(message.schedule, request.schedule)
    if request.trigger_immediately:
        message.initial_patch.trigger_immediately.SetInParent()
    _put_backfill(message.initial_patch, request.backfill)
    put_payload_map(message.memo.fields, request.memo)
    put_payload_map(message.search_attributes.indexed_fields, request.search_attributes)
    return Rpc(message)


def describe(request: sc.DescribeSchedule, scope: CallScope) -> Rpc:
    """Return the description of a schedule. The server reads the description from an internal workflow."""
    message = ws.DescribeScheduleRequest(namespace=scope.namespace, schedule_id=request.schedule_id)

    def read(answer: Any) -> sc.ScheduleDetails:
        return sc.ScheduleDetails(
            schedule_id=request.schedule_id,
            schedule=schedule_from(answer.schedule),
            info=info_from(answer.info),
            memo=payload_map_from(answer.memo.fields),
            search_attributes=payload_map_from(answer.search_attributes.indexed_fields),
            conflict_token=answer.conflict_token,
        )

    return Rpc(message, read, PATIENT)


def update(request: sc.UpdateSchedule, scope: CallScope) -> Rpc:
    """Replace a schedule. A server silently ignores a request with a stale conflict token."""
    message = message_of(ws.UpdateScheduleRequest, request, scope)
    put_schedule(message.schedule, request.schedule)
    return Rpc(message)


def patch(request: sc.PatchSchedule, scope: CallScope) -> Rpc:
    """Trigger, backfill, pause or unpause a schedule."""
    message = message_of(ws.PatchScheduleRequest, request, scope)
    if request.trigger is not None:
        trigger = message.patch.trigger_immediately
        trigger.SetInParent()
        trigger.overlap_policy = int(request.trigger)
    _put_backfill(message.patch, request.backfill)
    message.patch.pause = request.pause or ""
    message.patch.unpause = request.unpause or ""
    return Rpc(message)


def listing(request: sc.ListSchedules, scope: CallScope) -> Rpc:
    """Return a page of schedules."""
    message = message_of(ws.ListSchedulesRequest, request, scope)
    message.maximum_page_size = request.page_size
    return Rpc(message, _listed)


def _listed(answer: Any) -> sc.SchedulePage:
    return sc.SchedulePage(tuple(_summary(entry) for entry in answer.schedules), answer.next_page_token)


def _summary(entry: Any) -> sc.ScheduleSummary:
    info = entry.info
    return sc.ScheduleSummary(
        schedule_id=entry.schedule_id,
        workflow_type=info.workflow_type.name,
        paused=info.paused,
        note=info.notes,
        spec=spec_from(info.spec),
        recent_actions=tuple(action_from(action) for action in info.recent_actions),
        next_action_times=_times_from(info.future_action_times),
        memo=payload_map_from(entry.memo.fields),
        search_attributes=payload_map_from(entry.search_attributes.indexed_fields),
    )


def _put_backfill(patch: Any, backfills: tuple[ss.ScheduleBackfill, ...]) -> None:
    for backfill in backfills:
        message = patch.backfill_request.add()
        message.start_time.FromDatetime(backfill.start_at)
        message.end_time.FromDatetime(backfill.end_at)
        message.overlap_policy = int(backfill.overlap or ss.ScheduleOverlapPolicy.UNSPECIFIED)


ON_SCHEDULES: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    sc.CreateSchedule: create,
    sc.DescribeSchedule: describe,
    sc.UpdateSchedule: update,
    sc.PatchSchedule: patch,
    **sending({sc.DeleteSchedule: (ws.DeleteScheduleRequest, nothing)}),
    sc.ListSchedules: listing,
}
