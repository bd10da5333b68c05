"""Schedules as data: times, policies, state and past actions. Authors, requests, engines and stores use the same
classes.

Constructors accept convenient forms (a single number, seconds) and convert them, so that every attribute has one type:
durations are timedeltas, and times are datetimes with a time zone. Constructors raise `UsageError` for a value of
another type. `spec_checks` contains a server's checks. msgspec decodes these classes without calling their constructors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

from hourglass._evaluator.options import (
    INT64,
    Duration,
    check_text,
    choice,
    seconds,
    several,
    whole_number,
)
from hourglass.errors import UsageError

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def time_from(nanoseconds: int) -> datetime | None:
    """Convert nanoseconds since the epoch to a UTC time. 0 means unset and returns None."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None


def nanoseconds_of(time: datetime) -> int:
    """Convert a time to nanoseconds since the epoch."""
    return (time - _EPOCH) // _MICROSECOND * 1000


class ScheduleOverlapPolicy(IntEnum):
    """The action if a workflow is due while the previous workflow is running (Temporal's numbers)."""

    UNSPECIFIED = 0
    SKIP = 1
    BUFFER_ONE = 2
    BUFFER_ALL = 3
    CANCEL_OTHER = 4
    TERMINATE_OTHER = 5
    ALLOW_ALL = 6


@dataclass(frozen=True)
class ScheduleRange:
    """Every `step`-th number from `start` to `end`, inclusive. Without `end`, only `start`."""

    start: int
    end: int = 0
    step: int = 1

    def __post_init__(self) -> None:
        if not type(self.start) is type(self.end) is type(self.step) is int:
            for name in ("start", "end", "step"):
                whole_number(getattr(self, name), f"the {name} of a range", -INT64, INT64)


Numbers: TypeAlias = int | ScheduleRange | Sequence[int | ScheduleRange]
"""The numbers of a calendar field: a number, a range, or a sequence of numbers and ranges."""

ALL_DAYS_OF_MONTH = ScheduleRange(1, 31)
ALL_MONTHS = ScheduleRange(1, 12)
ALL_DAYS_OF_WEEK = ScheduleRange(0, 6)
_ZERO = (ScheduleRange(0),)


@dataclass(frozen=True, init=False)
class ScheduleCalendarSpec:
    """The times that match these numbers in every field. The default is midnight, every day.

    `ScheduleCalendarSpec(hour=9, minute=30, day_of_week=ScheduleRange(1, 5))` is half past nine, Monday to Friday.
    Sunday is 0. An empty year matches every year.
    """

    second: tuple[ScheduleRange, ...] = _ZERO
    minute: tuple[ScheduleRange, ...] = _ZERO
    hour: tuple[ScheduleRange, ...] = _ZERO
    day_of_month: tuple[ScheduleRange, ...] = (ALL_DAYS_OF_MONTH,)
    month: tuple[ScheduleRange, ...] = (ALL_MONTHS,)
    year: tuple[ScheduleRange, ...] = ()
    day_of_week: tuple[ScheduleRange, ...] = (ALL_DAYS_OF_WEEK,)
    comment: str = ""

    def __init__(
        self,
        second: Numbers = 0,
        minute: Numbers = 0,
        hour: Numbers = 0,
        day_of_month: Numbers = ALL_DAYS_OF_MONTH,
        month: Numbers = ALL_MONTHS,
        year: Numbers = (),
        day_of_week: Numbers = ALL_DAYS_OF_WEEK,
        comment: str | None = "",
    ) -> None:
        _set(
            self,
            second=_ranges(second, "second"),
            minute=_ranges(minute, "minute"),
            hour=_ranges(hour, "hour"),
            day_of_month=_ranges(day_of_month, "day_of_month"),
            month=_ranges(month, "month"),
            year=_ranges(year, "year"),
            day_of_week=_ranges(day_of_week, "day_of_week"),
            comment=check_text(comment or "", "the comment of a calendar"),
        )


@dataclass(frozen=True, init=False)
class ScheduleIntervalSpec:
    """The multiples of `every` since the epoch (midnight of 1 January 1970, UTC), shifted by `offset`."""

    every: timedelta
    offset: timedelta = timedelta()

    def __init__(self, every: Duration, offset: Duration | None = 0.0) -> None:
        _set(self, every=_duration(every, "every"), offset=_duration(offset or 0.0, "offset"))


@dataclass(frozen=True, init=False)
class ScheduleSpec:
    """The times at which a schedule acts: each time that a calendar, an interval or a cron string matches and no `skip`
    matches.

    Cron strings have 5 fields (minute, hour, day of month, month, day of week), 6 (a year at the end) or 7 (seconds at
    the start, a year at the end), or are shorthands such as `@daily` or `@every 90m`. A day of the month and a day of
    the week must both match. `ScheduleSpec()` contains no times, so a schedule with this spec acts only when it is
    triggered.
    """

    calendars: tuple[ScheduleCalendarSpec, ...] = ()
    intervals: tuple[ScheduleIntervalSpec, ...] = ()
    cron_expressions: tuple[str, ...] = ()
    skip: tuple[ScheduleCalendarSpec, ...] = ()
    start_at: datetime | None = None
    end_at: datetime | None = None
    jitter: timedelta | None = None
    time_zone_name: str | None = None
    _time_zone_data: bytes = field(default=b"", repr=False)

    def __init__(
        self,
        calendars: Sequence[ScheduleCalendarSpec] = (),
        intervals: Sequence[ScheduleIntervalSpec] = (),
        cron_expressions: Sequence[str] = (),
        skip: Sequence[ScheduleCalendarSpec] = (),
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        jitter: Duration | None = None,
        time_zone_name: str | None = None,
        _time_zone_data: bytes = b"",
    ) -> None:
        if isinstance(cron_expressions, str):
            raise UsageError("cron_expressions must be a list of str, not a single str")
        expressions = several(cron_expressions, "cron_expressions")
        _set(
            self,
            calendars=_all_of(ScheduleCalendarSpec, calendars, "calendars"),
            intervals=_all_of(ScheduleIntervalSpec, intervals, "intervals"),
            cron_expressions=tuple(check_text(text, "a cron expression") for text in expressions),
            skip=_all_of(ScheduleCalendarSpec, skip, "skip"),
            start_at=None if start_at is None else _time(start_at, "start_at"),
            end_at=None if end_at is None else _time(end_at, "end_at"),
            jitter=_optional_duration(jitter, "jitter"),
            time_zone_name=check_text(time_zone_name or "", "time_zone_name") or None,
            _time_zone_data=_time_zone_data,
        )


@dataclass(frozen=True, init=False)
class SchedulePolicy:
    """The policies of a schedule.

    `overlap` is the action if a workflow is due while the previous workflow is running. `catchup_window` is how late a
    workflow may be started after an outage (a year by default, at least 10 s). With `pause_on_failure` the schedule
    pauses after a workflow has failed or timed out.
    """

    overlap: ScheduleOverlapPolicy = ScheduleOverlapPolicy.SKIP
    catchup_window: timedelta | None = None
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False

    def __init__(
        self,
        overlap: ScheduleOverlapPolicy = ScheduleOverlapPolicy.SKIP,
        catchup_window: Duration | None = None,
        pause_on_failure: bool = False,
        keep_original_workflow_id: bool = False,
    ) -> None:
        _set(
            self,
            overlap=choice(ScheduleOverlapPolicy, overlap, "overlap"),
            catchup_window=_optional_duration(catchup_window, "catchup_window"),
            pause_on_failure=_flag(pause_on_failure, "pause_on_failure"),
            keep_original_workflow_id=_flag(keep_original_workflow_id, "keep_original_workflow_id"),
        )


@dataclass(frozen=True, init=False)
class ScheduleState:
    """Whether a schedule is paused, and why. If `limited_actions` is set, `remaining_actions` is decremented by each
    action.
    """

    note: str = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0

    def __init__(
        self,
        note: str | None = "",
        paused: bool = False,
        limited_actions: bool = False,
        remaining_actions: int = 0,
    ) -> None:
        _set(
            self,
            note=check_text(note or "", "the note of a schedule"),
            paused=_flag(paused, "paused"),
            limited_actions=_flag(limited_actions, "limited_actions"),
            remaining_actions=whole_number(remaining_actions, "remaining_actions", -INT64, INT64),
        )


@dataclass(frozen=True)
class ScheduleBackfill:
    """A range of past times, inclusive. The schedule acts now for each of its times in this range."""

    start_at: datetime
    end_at: datetime
    overlap: ScheduleOverlapPolicy | None = None

    def __post_init__(self) -> None:
        if _time(self.end_at, "end_at") < _time(self.start_at, "start_at"):
            raise UsageError("a backfill ends before it starts: end_at is before start_at")
        choice(ScheduleOverlapPolicy, self.overlap or ScheduleOverlapPolicy.UNSPECIFIED, "overlap")


@dataclass(frozen=True)
class ScheduleActionExecutionStartWorkflow:
    """A workflow that a schedule has started."""

    workflow_id: str
    first_execution_run_id: str


@dataclass(frozen=True, kw_only=True)
class ScheduleActionResult:
    """An action that a schedule has taken: its scheduled time, its actual time, and the workflow that it started."""

    scheduled_at: datetime | None
    started_at: datetime | None
    action: ScheduleActionExecutionStartWorkflow


@dataclass(frozen=True, kw_only=True)
class ScheduleInfo:
    """Statistics of a schedule, with its recent and next actions."""

    num_actions: int = 0
    num_actions_missed_catchup_window: int = 0
    num_actions_skipped_overlap: int = 0
    num_actions_dropped: int = 0
    num_actions_waiting: int = 0
    running_actions: tuple[ScheduleActionExecutionStartWorkflow, ...] = ()
    recent_actions: tuple[ScheduleActionResult, ...] = ()
    next_action_times: tuple[datetime, ...] = ()
    created_at: datetime | None = None
    last_updated_at: datetime | None = None


def _set(instance: Any, **values: Any) -> None:
    """Set the attributes of a frozen instance, in its constructor."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _ranges(numbers: Any, name: str) -> tuple[ScheduleRange, ...]:
    ranges: list[ScheduleRange] = []
    for entry in numbers if isinstance(numbers, Iterable) else (numbers,):
        if isinstance(entry, ScheduleRange):
            ranges.append(entry)
        elif isinstance(entry, int):
            ranges.append(ScheduleRange(entry))
        else:
            raise UsageError(
                f"{name} of a calendar must contain only int and ScheduleRange, not {type(entry).__name__}"
            )
    return tuple(ranges)


def _all_of(kind: type[T], values: Any, name: str) -> tuple[T, ...]:
    for value in several(values, name):
        if not isinstance(value, kind):
            raise UsageError(f"{name} must contain only {kind.__name__}, not {type(value).__name__}")
    return tuple(values)


def _duration(value: Duration, name: str) -> timedelta:
    length = seconds(value, name)
    return value if isinstance(value, timedelta) else timedelta(seconds=length)


def _optional_duration(value: Duration | None, name: str) -> timedelta | None:
    return None if value is None else _duration(value, name)


def _flag(value: bool, name: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be of type bool, not {type(value).__name__}")
    return value


def _time(value: datetime, name: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise UsageError(
            f"{name} must be a datetime with a time zone, such as datetime(2026, 1, 1, tzinfo=UTC)"
        )
    return value
