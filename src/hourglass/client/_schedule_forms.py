"""Schedules as authors write them (`_schedule_data`) into what travels, and back: checked, encoded, decoded. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourglass._contract import schedules as sc
from hourglass._contract.schedules import FIELDS, canonical, is_empty
from hourglass._contract.workflows import StartWorkflow
from hourglass._engine.options import (
    INT64,
    Duration,
    RetryPolicy,
    check_text,
    choice,
    named_values,
    seconds,
    several,
    whole_number,
)
from hourglass._engine.specs import RetryRule
from hourglass.client import _schedule_data as data
from hourglass.client._options import start_request
from hourglass.client._values import attributes_from, memo_from, time_from
from hourglass.converter import Converter, Payload
from hourglass.errors import UsageError
from hourglass.workflow._references import given_workflow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_KNOWN = tuple(data.ScheduleStartOptions.__annotations__)


# --- out ------------------------------------------------------------------------------------------


def schedule_form(
    schedule: data.Schedule, schedule_id: str, converter: Converter, identity: str
) -> sc.EngineSchedule:
    """A schedule as it travels. Raises `UsageError` and `ArgumentError` where it makes no sense."""
    if not isinstance(schedule, data.Schedule):
        raise UsageError(f"a schedule is a Schedule(action=…, spec=…), not a {type(schedule).__name__}")
    action, foreign = _action_form(schedule.action, schedule_id, converter, identity)
    spec = spec_form(schedule.spec)
    canonical(spec)  # so that nothing is sent that makes no sense
    policy, state = schedule.policy, schedule.state
    if not isinstance(policy, data.SchedulePolicy):
        raise UsageError(f"policy is a SchedulePolicy, not a {type(policy).__name__}")
    if not isinstance(state, data.ScheduleState):
        raise UsageError(f"state is a ScheduleState, not a {type(state).__name__}")
    whole_number(state.remaining_actions, "remaining_actions", -INT64, INT64)
    if state.remaining_actions < 0 or (state.remaining_actions and not state.limited_actions):
        raise UsageError("remaining_actions counts actions from 0 on, and only with limited_actions=True")
    return sc.EngineSchedule(
        action=action,
        spec=spec,
        policy=sc.EngineSchedulePolicy(
            overlap=choice(sc.OverlapPolicy, policy.overlap, "overlap"),
            catchup_window=_seconds(policy.catchup_window, "catchup_window"),
            pause_on_failure=policy.pause_on_failure,
            keep_original_workflow_id=policy.keep_original_workflow_id,
        ),
        state=sc.EngineScheduleState(
            note=state.note,
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
        foreign=foreign,
    )


def refuse_empty(spec: sc.EngineScheduleSpec) -> None:
    """Refuse a new spec that bounds or skips times, and names none. Those that exist may: other SDKs let them pass.

    One that says nothing at all is meant: that schedule acts when it is triggered.
    """
    if is_empty(spec) and (spec.skip or spec.start_at_ns or spec.end_at_ns or spec.jitter):
        raise UsageError(
            "the schedule names no time: its ScheduleSpec needs calendars, intervals or cron_expressions, or nothing at all "
            "where it is only triggered"
        )
    for calendar in (*spec.calendars, *spec.skip):
        for field in FIELDS:
            if field.name != "year" and not getattr(calendar, field.name):
                raise UsageError(f"{field.name} of a calendar is empty: it would never match")


def spec_form(spec: data.ScheduleSpec) -> sc.EngineScheduleSpec:
    """When a schedule acts, as it travels."""
    if not isinstance(spec, data.ScheduleSpec):
        raise UsageError(f"spec is a ScheduleSpec, not a {type(spec).__name__}")
    if isinstance(spec.cron_expressions, str):
        raise UsageError("cron_expressions is a list of texts, not one text: put it in brackets")
    return sc.EngineScheduleSpec(
        calendars=tuple(_calendar_form(each) for each in several(spec.calendars, "calendars")),
        intervals=tuple(_interval_form(each) for each in several(spec.intervals, "intervals")),
        cron_expressions=tuple(
            check_text(each, "a cron expression")
            for each in several(spec.cron_expressions, "cron_expressions")
        ),
        skip=tuple(_calendar_form(each) for each in several(spec.skip, "skip")),
        start_at_ns=_nanos(spec.start_at, "start_at"),
        end_at_ns=_nanos(spec.end_at, "end_at"),
        jitter=_seconds(spec.jitter, "jitter"),
        time_zone=spec.time_zone_name or "",
        time_zone_data=spec._time_zone_data,
    )


def backfill_form(backfill: data.ScheduleBackfill) -> sc.Backfill:
    """A backfill as it travels."""
    if not isinstance(backfill, data.ScheduleBackfill):
        raise UsageError(f"a backfill is a ScheduleBackfill, not a {type(backfill).__name__}")
    return sc.Backfill(
        start_ns=_nanos(backfill.start_at, "start_at"),
        end_ns=_nanos(backfill.end_at, "end_at"),
        overlap=choice(sc.OverlapPolicy, backfill.overlap or sc.OverlapPolicy.UNSPECIFIED, "overlap"),
    )


def _interval_form(interval: data.ScheduleIntervalSpec) -> sc.IntervalSpec:
    if not isinstance(interval, data.ScheduleIntervalSpec):
        raise UsageError(f"an interval is a ScheduleIntervalSpec, not a {type(interval).__name__}")
    return sc.IntervalSpec(seconds(interval.every, "every"), seconds(interval.offset, "offset"))


def _calendar_form(calendar: data.ScheduleCalendarSpec) -> sc.CalendarSpec:
    if not isinstance(calendar, data.ScheduleCalendarSpec):
        raise UsageError(f"a calendar is a ScheduleCalendarSpec, not a {type(calendar).__name__}")
    ranges = {field.name: _ranges(getattr(calendar, field.name), field.name) for field in FIELDS}
    return sc.CalendarSpec(**ranges, comment=check_text(calendar.comment, "the comment of a calendar"))


def _ranges(numbers: data.Numbers, name: str) -> tuple[sc.Range, ...]:
    given = [numbers] if isinstance(numbers, (int, data.ScheduleRange)) else numbers
    ranges = []
    for each in given if isinstance(given, Iterable) else [given]:
        if isinstance(each, data.ScheduleRange):
            ranges.append(sc.Range(each.start, each.end, each.step))
        elif isinstance(each, int):
            ranges.append(sc.Range(each))
        else:
            raise UsageError(
                f"{name} of a calendar takes numbers and ScheduleRange, not a {type(each).__name__}"
            )
    return tuple(ranges)


def _action_form(
    action: data.ScheduleActionStartWorkflow, schedule_id: str, converter: Converter, identity: str
) -> tuple[StartWorkflow, bytes]:
    if not isinstance(action, data.ScheduleActionStartWorkflow):
        raise UsageError(f"action is a ScheduleActionStartWorkflow, not a {type(action).__name__}")
    if action._known is not None:
        return action._known
    for name in action.options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_KNOWN)}"
            raise UsageError(f"a schedule's action has no option {name!r} ({hint})")
    options = {"id": schedule_id, **action.options}
    headers = _headers(options.pop("headers", {}))
    request = start_request(given_workflow(action.workflow), action.args, options, converter, identity)
    return msgspec.structs.replace(request, headers=headers), b""


def _headers(given: object) -> dict[str, Payload]:
    headers = named_values(given, "headers")
    for name, each in headers.items():
        if not isinstance(each, Payload):
            raise UsageError(f"headers are payloads by name: that of {name!r} is a {type(each).__name__}")
    return dict(headers)


def _seconds(duration: Duration | None, what: str) -> float:
    return 0.0 if duration is None else seconds(duration, what)


def _nanos(time: datetime | None, what: str) -> int:
    if time is None:
        return 0
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError(f"{what} is a datetime with a time zone, such as datetime(2026, 1, 1, tzinfo=UTC)")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


# --- in -------------------------------------------------------------------------------------------


def description_from(answer: sc.ScheduleDetails, converter: Converter) -> data.ScheduleDescription:
    """A schedule in detail."""
    return data.ScheduleDescription(
        id=answer.schedule_id,
        schedule=_schedule_from(answer.schedule, converter),
        info=_info_from(answer.info),
        memo=memo_from(answer.memo, converter),
        search_attributes=attributes_from(answer.search_attributes),
    )


def listed_from(summary: sc.ScheduleSummary, converter: Converter) -> data.ScheduleListDescription:
    """A schedule of a list."""
    return data.ScheduleListDescription(
        id=summary.schedule_id,
        workflow_type=summary.workflow_type,
        spec=spec_from(summary.spec),
        paused=summary.paused,
        note=summary.note,
        recent_actions=tuple(_result_from(action) for action in summary.recent_actions),
        next_action_times=_times_from(summary.next_times_ns),
        memo=memo_from(summary.memo, converter),
        search_attributes=attributes_from(summary.search_attributes),
    )


def spec_from(spec: sc.EngineScheduleSpec) -> data.ScheduleSpec:
    """When a schedule acts."""
    return data.ScheduleSpec(
        calendars=tuple(_calendar_from(each) for each in spec.calendars),
        intervals=tuple(
            data.ScheduleIntervalSpec(timedelta(seconds=each.every), timedelta(seconds=each.offset))
            for each in spec.intervals
        ),
        cron_expressions=spec.cron_expressions,
        skip=tuple(_calendar_from(each) for each in spec.skip),
        start_at=time_from(spec.start_at_ns),
        end_at=time_from(spec.end_at_ns),
        jitter=_duration(spec.jitter),
        time_zone_name=spec.time_zone or None,
        _time_zone_data=spec.time_zone_data,
    )


def _schedule_from(schedule: sc.EngineSchedule, converter: Converter) -> data.Schedule:
    policy, state = schedule.policy, schedule.state
    return data.Schedule(
        action=_action_from(schedule.action, schedule.foreign, converter),
        spec=spec_from(schedule.spec),
        policy=data.SchedulePolicy(
            overlap=policy.overlap,
            catchup_window=_duration(policy.catchup_window),
            pause_on_failure=policy.pause_on_failure,
            keep_original_workflow_id=policy.keep_original_workflow_id,
        ),
        state=data.ScheduleState(
            note=state.note,
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
    )


def _action_from(
    action: StartWorkflow, foreign: bytes, converter: Converter
) -> data.ScheduleActionStartWorkflow:
    options: dict[str, Any] = {"id": action.workflow_id, "task_queue": action.spec.task_queue}
    for name in ("execution_timeout", "run_timeout", "task_timeout"):
        if limit := getattr(action.spec, name):
            options[name] = timedelta(seconds=limit)
    if action.spec.retry_policy is not None and (policy := _policy_from(action.spec.retry_policy)):
        options["retry_policy"] = policy
    if action.spec.priority_key:
        options["priority_key"] = action.spec.priority_key
    if action.headers:
        options["headers"] = dict(action.headers)
    if action.spec.memo:
        options["memo"] = memo_from(action.spec.memo, converter)
    if action.spec.search_attributes:
        options["search_attributes"] = attributes_from(action.spec.search_attributes)
    args = memo_from({str(at): each for at, each in enumerate(action.arguments)}, converter)
    return data.ScheduleActionStartWorkflow._from_service(action, foreign, tuple(args.values()), options)


def _policy_from(rule: RetryRule) -> RetryPolicy | None:
    try:
        return RetryPolicy(
            initial_interval=rule.initial_interval or 1.0,
            backoff_coefficient=rule.backoff_coefficient or 2.0,
            maximum_interval=rule.maximum_interval or None,
            maximum_attempts=rule.maximum_attempts,
            non_retryable_error_types=rule.non_retryable_error_types,
        )
    except UsageError:  # others' policies need not keep our rules; the action itself keeps it as it is
        return None


def _calendar_from(calendar: sc.CalendarSpec) -> data.ScheduleCalendarSpec:
    ranges: Mapping[str, Any] = {
        field.name: tuple(
            data.ScheduleRange(each.start, each.end, each.step) for each in getattr(calendar, field.name)
        )
        for field in FIELDS
    }
    return data.ScheduleCalendarSpec(**ranges, comment=calendar.comment)


def _info_from(info: sc.EngineScheduleInfo) -> data.ScheduleInfo:
    return data.ScheduleInfo(
        num_actions=info.action_count,
        num_actions_missed_catchup_window=info.missed_catchup,
        num_actions_skipped_overlap=info.skipped_overlap,
        num_actions_dropped=info.buffer_dropped,
        num_actions_waiting=info.buffer_size,
        running_actions=tuple(data.ScheduleActionExecutionStartWorkflow(*each) for each in info.running),
        recent_actions=tuple(_result_from(action) for action in info.recent_actions),
        next_action_times=_times_from(info.next_times_ns),
        created_at=time_from(info.create_time_ns),
        last_updated_at=time_from(info.update_time_ns),
    )


def _result_from(action: sc.ScheduleAction) -> data.ScheduleActionResult:
    return data.ScheduleActionResult(
        scheduled_at=time_from(action.schedule_time_ns),
        started_at=time_from(action.actual_time_ns),
        action=data.ScheduleActionExecutionStartWorkflow(action.workflow_id, action.run_id),
    )


def _times_from(times: Sequence[int]) -> tuple[datetime, ...]:
    return tuple(time for time in map(time_from, times) if time is not None)


def _duration(value: float) -> timedelta | None:
    return timedelta(seconds=value) if value else None
