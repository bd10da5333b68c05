"""Schedules as authors write them and clients show them: frozen data with Temporal's names, and their conversion to and from
the classes of `_contract.schedules`. Pure.

Durations are timedeltas or numbers of seconds, times are datetimes with a time zone. The operations are in `_schedules`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypedDict, TypeVarTuple, Unpack, overload

import msgspec

from hourglass._contract import schedules as sc
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
from hourglass.client._values import attributes_from, memo_from, time_from
from hourglass.converter import Converter, Payload, SearchAttributes
from hourglass.errors import UsageError
from hourglass.workflow._references import given_workflow

Ts = TypeVarTuple("Ts")

ScheduleOverlapPolicy = sc.OverlapPolicy


@dataclass(frozen=True)
class ScheduleRange:
    """Every `step`-th number from `start` to `end`, both included; only `start` if there is no `end`."""

    start: int
    end: int = 0
    step: int = 1


Numbers: TypeAlias = int | ScheduleRange | Sequence[int | ScheduleRange]
"""Numbers of a calendar: one, a range, or a sequence of both."""

ALL_DAYS_OF_MONTH = ScheduleRange(1, 31)
ALL_MONTHS = ScheduleRange(1, 12)
ALL_DAYS_OF_WEEK = ScheduleRange(0, 6)


@dataclass(frozen=True)
class ScheduleCalendarSpec:
    """The times that match these numbers in every field; by default midnight, every day.

    `ScheduleCalendarSpec(hour=9, minute=30, day_of_week=ScheduleRange(1, 5))` is half past nine, Monday to Friday. Sunday is 0.
    An empty year matches every year.
    """

    second: Numbers = 0
    minute: Numbers = 0
    hour: Numbers = 0
    day_of_month: Numbers = ALL_DAYS_OF_MONTH
    month: Numbers = ALL_MONTHS
    year: Numbers = ()
    day_of_week: Numbers = ALL_DAYS_OF_WEEK
    comment: str | None = ""


@dataclass(frozen=True)
class ScheduleIntervalSpec:
    """The multiples of `every` since the epoch (midnight of 1 January 1970, UTC), shifted by `offset`."""

    every: Duration
    offset: Duration | None = 0.0


@dataclass(frozen=True)
class ScheduleSpec:
    """The times at which a schedule acts: each time of a calendar, an interval or a cron string that no `skip` matches.

    Cron strings have 5 fields (minute, hour, day of month, month, day of week), 6 (and a year) or 7 (seconds first, a year last),
    or are `@daily` and similar shorthands or `@every 90m`. A day of the month and a day of the week must both match.
    `ScheduleSpec()` names no time: such a schedule only acts when it is triggered.
    """

    calendars: Sequence[ScheduleCalendarSpec] = ()
    intervals: Sequence[ScheduleIntervalSpec] = ()
    cron_expressions: Sequence[str] = ()
    skip: Sequence[ScheduleCalendarSpec] = ()
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: Duration | None = None
    time_zone_name: str | None = None
    _time_zone_data: bytes = field(default=b"", repr=False)


class ScheduleStartOptions(TypedDict, total=False):
    """Options of the workflows that a schedule starts. All are optional."""

    id: str
    """The prefix of the workflows' ids, to which the time is appended; the schedule's own id by default."""
    task_queue: str
    """The task queue of the workflows; "default" by default."""
    execution_timeout: Duration | None
    """The timeout of all runs of one workflow together."""
    run_timeout: Duration | None
    """The timeout of one run."""
    task_timeout: Duration | None
    """The timeout of one workflow task, after which another worker receives it; values above 120 s count as 120 s."""
    retry_policy: RetryPolicy | None
    """The retry policy of a failed workflow; None: no retries."""
    memo: Mapping[str, Any]
    """Notes stored with each workflow; not searchable."""
    search_attributes: SearchAttributes
    """Values by which each workflow can be found; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's UI."""
    static_details: str
    """Further details for Temporal's UI."""
    priority_key: int
    """The priority in the task queue: lower is sooner, 0 is the default."""
    headers: Mapping[str, Payload]
    """Payloads for interceptors of the workflows, beside the arguments; not encoded by a codec."""


class ScheduleActionStartWorkflow:
    """The action of a schedule: start a workflow, named as for `client.start_workflow`.

    In a description the workflow is its name, and the arguments are decoded as far as possible without types.
    """

    workflow: object
    args: Sequence[Any]
    options: Mapping[str, Any]

    @overload
    def __init__(self, workflow: str, /, *args: Any, **options: Unpack[ScheduleStartOptions]) -> None: ...
    @overload
    def __init__(
        self, workflow: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[ScheduleStartOptions]
    ) -> None: ...
    def __init__(self, workflow: Any, /, *args: Any, **options: Any) -> None:  # type: ignore[misc]
        self.workflow = workflow
        self.args = args
        self.options = options
        self._known: tuple[StartWorkflow, bytes] | None = None

    @classmethod
    def _from_service(
        cls, action: StartWorkflow, foreign: bytes, args: Sequence[Any], options: Mapping[str, Any]
    ) -> ScheduleActionStartWorkflow:
        """Return an action of an existing schedule, which an update sends back unchanged."""
        made = cls(action.workflow_type, *args)
        made.options = options
        made._known = (action, foreign)
        return made

    def __repr__(self) -> str:
        name = getattr(self.workflow, "__name__", None) or self.workflow
        return f"<ScheduleActionStartWorkflow {name} with {len(self.args)} arguments>"


@dataclass(frozen=True)
class SchedulePolicy:
    """The policies of a schedule.

    `overlap` is the action if a workflow is due while the previous one is running, `catchup_window` how late a workflow may be
    started after an outage (a year by default, at least 10 s). With `pause_on_failure` the schedule pauses after a workflow that
    failed or timed out.
    """

    overlap: ScheduleOverlapPolicy = ScheduleOverlapPolicy.SKIP
    catchup_window: Duration | None = None
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


@dataclass(frozen=True)
class ScheduleState:
    """Whether a schedule is paused, and why. `remaining_actions` counts down if `limited_actions` is set."""

    note: str | None = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


@dataclass(frozen=True)
class Schedule:
    """The definition of a schedule: its action, and its times."""

    action: ScheduleActionStartWorkflow
    spec: ScheduleSpec
    policy: SchedulePolicy = SchedulePolicy()
    state: ScheduleState = ScheduleState()


@dataclass(frozen=True)
class ScheduleBackfill:
    """A range of past times, both ends included, for which the schedule acts now."""

    start_at: datetime
    end_at: datetime
    overlap: ScheduleOverlapPolicy | None = None

    def __post_init__(self) -> None:
        if self.end_at < self.start_at:
            raise UsageError("a backfill ends before it starts: end_at lies before start_at")


@dataclass(frozen=True)
class ScheduleActionExecutionStartWorkflow:
    """A workflow that a schedule started."""

    workflow_id: str
    first_execution_run_id: str


@dataclass(frozen=True, kw_only=True)
class ScheduleActionResult:
    """An action that a schedule took: its scheduled time, its actual time, and the workflow it started."""

    scheduled_at: datetime | None
    started_at: datetime | None
    action: ScheduleActionExecutionStartWorkflow


@dataclass(frozen=True, kw_only=True)
class ScheduleInfo:
    """The past and the next actions of a schedule."""

    num_actions: int
    num_actions_missed_catchup_window: int
    num_actions_skipped_overlap: int
    num_actions_dropped: int
    num_actions_waiting: int
    running_actions: tuple[ScheduleActionExecutionStartWorkflow, ...]
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    created_at: datetime | None
    last_updated_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class ScheduleDescription:
    """A schedule in detail.

    `memo` and `search_attributes` are decoded; an entry that cannot be decoded remains a `Payload`.
    """

    id: str
    schedule: Schedule
    info: ScheduleInfo
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScheduleListDescription:
    """A schedule in a list."""

    id: str
    workflow_type: str
    spec: ScheduleSpec
    paused: bool
    note: str
    recent_actions: tuple[ScheduleActionResult, ...]
    next_action_times: tuple[datetime, ...]
    memo: Mapping[str, Any]
    search_attributes: Mapping[str, Any]


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
    sc.canonical(spec)  # so that no invalid spec is sent
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
    if sc.is_empty(spec) and (spec.skip or spec.start_at_ns or spec.end_at_ns or spec.jitter):
        raise UsageError(
            "the schedule names no time: its ScheduleSpec needs calendars, intervals or cron_expressions, or nothing at all "
            "where it is only triggered"
        )
    for calendar in (*spec.calendars, *spec.skip):
        for part in sc.FIELDS:
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
    ranges = {field.name: _ranges(getattr(calendar, field.name), field.name) for field in sc.FIELDS}
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
        for field in sc.FIELDS
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
