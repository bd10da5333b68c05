"""Schedules as requests: the classes of authors, checked and converted to those of the contract, and back. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourglass._contract import schedules as sc
from hourglass._contract.cron import FIELDS
from hourglass._contract.spec_checks import canonical, is_empty
from hourglass._contract.workflows import StartWorkflow
from hourglass._evaluator.options import (
    INT64,
    Duration,
    RetryPolicy,
    check_text,
    choice,
    named_values,
    policy_from,
    seconds,
    several,
    whole_number,
)
from hourglass._evaluator.specs import RetryRule
from hourglass.client._options import start_request
from hourglass.client._schedule_data import (
    Numbers,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleInfo,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleStartOptions,
    ScheduleState,
)
from hourglass.client._values import attributes_from, memo_from, time_from
from hourglass.converter import Converter, Payload
from hourglass.errors import UsageError
from hourglass.workflow._references import given_workflow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_KNOWN = tuple(ScheduleStartOptions.__annotations__)


def schedule_form(
    schedule: Schedule, schedule_id: str, converter: Converter, identity: str
) -> sc.EngineSchedule:
    """Return a schedule for a request. Raises `UsageError` and `ArgumentError` for invalid values."""
    if not isinstance(schedule, Schedule):
        raise UsageError(f"a schedule is a Schedule(action=…, spec=…), not a {type(schedule).__name__}")
    action, foreign = _action_form(schedule.action, schedule_id, converter, identity)
    spec = spec_form(schedule.spec)
    canonical(spec)  # so that no invalid spec is sent
    policy, state = schedule.policy, schedule.state
    if not isinstance(policy, SchedulePolicy):
        raise UsageError(f"policy is a SchedulePolicy, not a {type(policy).__name__}")
    if not isinstance(state, ScheduleState):
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
            note=state.note or "",
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
        foreign=foreign,
    )


def refuse_empty(spec: sc.EngineScheduleSpec) -> None:
    """Reject a new spec that restricts or skips times but names none. Existing ones are accepted, because other SDKs permit
    them.

    An entirely empty spec is valid: that schedule acts when it is triggered.
    """
    if is_empty(spec) and (spec.skip or spec.start_at_ns or spec.end_at_ns or spec.jitter):
        raise UsageError(
            "the schedule names no time: its ScheduleSpec needs calendars, intervals or cron_expressions, or nothing at all "
            "where it is only triggered"
        )
    for calendar in (*spec.calendars, *spec.skip):
        for part in FIELDS:
            if part.name != "year" and not getattr(calendar, part.name):
                raise UsageError(f"{part.name} of a calendar is empty: it would never match")


def spec_form(spec: ScheduleSpec) -> sc.EngineScheduleSpec:
    """Return a spec for a request."""
    if not isinstance(spec, ScheduleSpec):
        raise UsageError(f"spec is a ScheduleSpec, not a {type(spec).__name__}")
    if isinstance(spec.cron_expressions, str):
        raise UsageError("cron_expressions is a list of texts, not one text: put it in brackets")
    return sc.EngineScheduleSpec(
        calendars=tuple(_calendar_form(calendar) for calendar in several(spec.calendars, "calendars")),
        intervals=tuple(_interval_form(interval) for interval in several(spec.intervals, "intervals")),
        cron_expressions=tuple(
            check_text(cron_expression, "a cron expression")
            for cron_expression in several(spec.cron_expressions, "cron_expressions")
        ),
        skip=tuple(_calendar_form(calendar) for calendar in several(spec.skip, "skip")),
        start_at_ns=_nanos(spec.start_at, "start_at"),
        end_at_ns=_nanos(spec.end_at, "end_at"),
        jitter=_seconds(spec.jitter, "jitter"),
        time_zone=spec.time_zone_name or "",
        time_zone_data=spec._time_zone_data,
    )


def backfill_form(backfill: ScheduleBackfill) -> sc.Backfill:
    """Return a backfill for a request."""
    if not isinstance(backfill, ScheduleBackfill):
        raise UsageError(f"a backfill is a ScheduleBackfill, not a {type(backfill).__name__}")
    return sc.Backfill(
        start_ns=_nanos(backfill.start_at, "start_at"),
        end_ns=_nanos(backfill.end_at, "end_at"),
        overlap=choice(sc.OverlapPolicy, backfill.overlap or sc.OverlapPolicy.UNSPECIFIED, "overlap"),
    )


def _interval_form(interval: ScheduleIntervalSpec) -> sc.IntervalSpec:
    if not isinstance(interval, ScheduleIntervalSpec):
        raise UsageError(f"an interval is a ScheduleIntervalSpec, not a {type(interval).__name__}")
    return sc.IntervalSpec(seconds(interval.every, "every"), seconds(interval.offset or 0.0, "offset"))


def _calendar_form(calendar: ScheduleCalendarSpec) -> sc.CalendarSpec:
    if not isinstance(calendar, ScheduleCalendarSpec):
        raise UsageError(f"a calendar is a ScheduleCalendarSpec, not a {type(calendar).__name__}")
    ranges = {field.name: _ranges(getattr(calendar, field.name), field.name) for field in FIELDS}
    return sc.CalendarSpec(**ranges, comment=check_text(calendar.comment or "", "the comment of a calendar"))


def _ranges(numbers: Numbers, name: str) -> tuple[sc.Range, ...]:
    candidates = [numbers] if isinstance(numbers, (int, ScheduleRange)) else numbers
    ranges = []
    for number in candidates if isinstance(candidates, Iterable) else [candidates]:
        if isinstance(number, ScheduleRange):
            ranges.append(sc.Range(number.start, number.end, number.step))
        elif isinstance(number, int):
            ranges.append(sc.Range(number))
        else:
            raise UsageError(
                f"{name} of a calendar takes numbers and ScheduleRange, not a {type(number).__name__}"
            )
    return tuple(ranges)


def _action_form(
    action: ScheduleActionStartWorkflow, schedule_id: str, converter: Converter, identity: str
) -> tuple[StartWorkflow, bytes]:
    if not isinstance(action, ScheduleActionStartWorkflow):
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


def _headers(value: object) -> dict[str, Payload]:
    headers = named_values(value, "headers")
    for name, payload in headers.items():
        if not isinstance(payload, Payload):
            raise UsageError(f"headers are payloads by name: that of {name!r} is a {type(payload).__name__}")
    return dict(headers)


def _seconds(duration: Duration | None, what: str) -> float:
    return 0.0 if duration is None else seconds(duration, what)


def _nanos(time: datetime | None, what: str) -> int:
    if time is None:
        return 0
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError(f"{what} is a datetime with a time zone, such as datetime(2026, 1, 1, tzinfo=UTC)")
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


def description_from(answer: sc.ScheduleDetails, converter: Converter) -> ScheduleDescription:
    """Return the description of a schedule."""
    return ScheduleDescription(
        id=answer.schedule_id,
        schedule=_schedule_from(answer.schedule, converter),
        info=_info_from(answer.info),
        memo=memo_from(answer.memo, converter),
        search_attributes=attributes_from(answer.search_attributes),
    )


def listed_from(summary: sc.ScheduleSummary, converter: Converter) -> ScheduleListDescription:
    """Return a schedule of a list."""
    return ScheduleListDescription(
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


def spec_from(spec: sc.EngineScheduleSpec) -> ScheduleSpec:
    """Return a spec as authors write it."""
    return ScheduleSpec(
        calendars=tuple(_calendar_from(calendar) for calendar in spec.calendars),
        intervals=tuple(
            ScheduleIntervalSpec(timedelta(seconds=interval.every), timedelta(seconds=interval.offset))
            for interval in spec.intervals
        ),
        cron_expressions=spec.cron_expressions,
        skip=tuple(_calendar_from(calendar) for calendar in spec.skip),
        start_at=time_from(spec.start_at_ns),
        end_at=time_from(spec.end_at_ns),
        jitter=_duration(spec.jitter),
        time_zone_name=spec.time_zone or None,
        _time_zone_data=spec.time_zone_data,
    )


def _schedule_from(schedule: sc.EngineSchedule, converter: Converter) -> Schedule:
    policy, state = schedule.policy, schedule.state
    return Schedule(
        action=_action_from(schedule.action, schedule.foreign, converter),
        spec=spec_from(schedule.spec),
        policy=SchedulePolicy(
            overlap=policy.overlap,
            catchup_window=_duration(policy.catchup_window),
            pause_on_failure=policy.pause_on_failure,
            keep_original_workflow_id=policy.keep_original_workflow_id,
        ),
        state=ScheduleState(
            note=state.note or "",
            paused=state.paused,
            limited_actions=state.limited_actions,
            remaining_actions=state.remaining_actions,
        ),
    )


def _action_from(action: StartWorkflow, foreign: bytes, converter: Converter) -> ScheduleActionStartWorkflow:
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
    args = memo_from({str(at): payload for at, payload in enumerate(action.arguments)}, converter)
    return ScheduleActionStartWorkflow._from_service(action, foreign, tuple(args.values()), options)


def _policy_from(rule: RetryRule) -> RetryPolicy | None:
    try:
        return policy_from(rule)
    except UsageError:  # other SDKs permit policies that we reject; the action itself is kept unchanged
        return None


def _calendar_from(calendar: sc.CalendarSpec) -> ScheduleCalendarSpec:
    ranges: Mapping[str, Any] = {
        field.name: tuple(
            ScheduleRange(numbers.start, numbers.end, numbers.step)
            for numbers in getattr(calendar, field.name)
        )
        for field in FIELDS
    }
    return ScheduleCalendarSpec(**ranges, comment=calendar.comment)


def _info_from(info: sc.EngineScheduleInfo) -> ScheduleInfo:
    return ScheduleInfo(
        num_actions=info.action_count,
        num_actions_missed_catchup_window=info.missed_catchup,
        num_actions_skipped_overlap=info.skipped_overlap,
        num_actions_dropped=info.buffer_dropped,
        num_actions_waiting=info.buffer_size,
        running_actions=tuple(ScheduleActionExecutionStartWorkflow(*ids) for ids in info.running),
        recent_actions=tuple(_result_from(action) for action in info.recent_actions),
        next_action_times=_times_from(info.next_times_ns),
        created_at=time_from(info.create_time_ns),
        last_updated_at=time_from(info.update_time_ns),
    )


def _result_from(action: sc.ScheduleAction) -> ScheduleActionResult:
    return ScheduleActionResult(
        scheduled_at=time_from(action.schedule_time_ns),
        started_at=time_from(action.actual_time_ns),
        action=ScheduleActionExecutionStartWorkflow(action.workflow_id, action.run_id),
    )


def _times_from(times: Sequence[int]) -> tuple[datetime, ...]:
    return tuple(time for time in map(time_from, times) if time is not None)


def _duration(value: float) -> timedelta | None:
    return timedelta(seconds=value) if value else None
