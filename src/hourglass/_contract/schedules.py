"""Schedules as engines receive them: data, requests, cron strings in Temporal's dialect, and a server's checks of a spec.

Must not know: clocks, stores, the wire. Pure. The vocabulary is Temporal's; times are nanoseconds since the epoch,
durations seconds; 0, None or empty means unset. `canonical` returns a spec as a server shows it; the engine's search for
times starts from it. Authors use the classes of `client._schedule_data`, which accept dates, timedeltas and single numbers.

The cron dialect is the server's, not crontab's, so that both engines agree:

    5 fields    minute, hour, day of month, month, day of week
    6 fields    the same and a year
    7 fields    seconds first, a year last
    @yearly @annually @monthly @weekly @daily @midnight @hourly
    @every 90m, @every 6h/45m (an interval, and its offset)
    CRON_TZ=Europe/Berlin or TZ=… in front, a # comment behind

A field is `*`, numbers, ranges and steps, separated by commas; months and weekdays also by name. A time matches if
*all* its parts do: a day of the month and a day of the week both count, where crontab takes either. Sunday is 0 or
7.
"""

from __future__ import annotations

import re
from enum import IntEnum
from io import BytesIO
from typing import ClassVar, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from hourglass._contract.service import Effect, Nothing, ReadAnswer, Request
from hourglass._contract.workflows import StartWorkflow
from hourglass.converter import Payload
from hourglass.errors import UsageError


class OverlapPolicy(IntEnum):
    """The action if a workflow is due while the previous one is running (Temporal's numbers)."""

    UNSPECIFIED = 0
    SKIP = 1
    BUFFER_ONE = 2
    BUFFER_ALL = 3
    CANCEL_OTHER = 4
    TERMINATE_OTHER = 5
    ALLOW_ALL = 6


class Range(msgspec.Struct, frozen=True, array_like=True):
    """Every `step`-th number from `start` to `end`, both included; an `end` below `start` means `start` alone."""

    start: int
    end: int = 0
    step: int = 1


class CalendarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Times that match a range in every field. Days of the week count from 0, Sunday; an empty year matches every year."""

    second: tuple[Range, ...] = (Range(0),)
    minute: tuple[Range, ...] = (Range(0),)
    hour: tuple[Range, ...] = (Range(0),)
    day_of_month: tuple[Range, ...] = (Range(1, 31),)
    month: tuple[Range, ...] = (Range(1, 12),)
    day_of_week: tuple[Range, ...] = (Range(0, 6),)
    year: tuple[Range, ...] = ()
    comment: str = ""


class IntervalSpec(msgspec.Struct, frozen=True):
    """Every `every` seconds since the epoch, shifted by `offset`."""

    every: float
    offset: float = 0.0


class EngineScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The times at which a schedule acts: each time of a calendar, an interval or a cron string that no `skip` matches."""

    calendars: tuple[CalendarSpec, ...] = ()
    intervals: tuple[IntervalSpec, ...] = ()
    cron_expressions: tuple[str, ...] = ()
    skip: tuple[CalendarSpec, ...] = ()
    start_at_ns: int = 0
    end_at_ns: int = 0
    jitter: float = 0.0
    time_zone: str = ""
    time_zone_data: bytes = b""


class EngineSchedulePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of a schedule. A catch-up window of 0 means the engine's default, a year."""

    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catchup_window: float = 0.0
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


class EngineScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a schedule is paused, and its remaining actions if `limited_actions` is set."""

    note: str = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


class EngineSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Its action starts a workflow, whose id gets the time appended.

    `foreign` holds those parts of the action that this module has no fields for, so that updating a schedule of another SDK loses
    nothing.
    """

    action: StartWorkflow
    spec: EngineScheduleSpec = EngineScheduleSpec()
    policy: EngineSchedulePolicy = EngineSchedulePolicy()
    state: EngineScheduleState = EngineScheduleState()
    foreign: bytes = b""


class ScheduleAction(msgspec.Struct, frozen=True, kw_only=True):
    """One action that a schedule took."""

    schedule_time_ns: int
    actual_time_ns: int = 0
    workflow_id: str = ""
    run_id: str = ""


class EngineScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The past and the next actions of a schedule."""

    action_count: int = 0
    missed_catchup: int = 0
    skipped_overlap: int = 0
    buffer_dropped: int = 0
    buffer_size: int = 0
    running: tuple[tuple[str, str], ...] = ()
    recent_actions: tuple[ScheduleAction, ...] = ()
    next_times_ns: tuple[int, ...] = ()
    create_time_ns: int = 0
    update_time_ns: int = 0


class ScheduleDetails(ReadAnswer, frozen=True, kw_only=True):
    """A schedule in detail. `conflict_token` protects an update against concurrent updates."""

    schedule_id: str
    schedule: EngineSchedule
    info: EngineScheduleInfo = EngineScheduleInfo()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    conflict_token: bytes = b""


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in a list."""

    schedule_id: str
    workflow_type: str = ""
    paused: bool = False
    note: str = ""
    spec: EngineScheduleSpec = EngineScheduleSpec()
    recent_actions: tuple[ScheduleAction, ...] = ()
    next_times_ns: tuple[int, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class SchedulePage(ReadAnswer, frozen=True):
    """A page of a list of schedules; `next_page_token` is empty at the end."""

    schedules: tuple[ScheduleSummary, ...]
    next_page_token: bytes = b""


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """A range of past times for which the schedule acts now."""

    start_ns: int
    end_ns: int
    overlap: OverlapPolicy = OverlapPolicy.UNSPECIFIED


class CreateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Create a schedule. Raises `ScheduleAlreadyExistsError` if its id is in use."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    schedule: EngineSchedule
    request_id: str
    identity: str = ""
    trigger_immediately: bool = False
    backfill: tuple[Backfill, ...] = ()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}


class DescribeSchedule(Request[ScheduleDetails], frozen=True, kw_only=True):
    """Return the description of a schedule."""

    effect: ClassVar[Effect] = Effect.READ
    schedule_id: str


class UpdateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Replace a schedule. With a `conflict_token`: only if no other client has replaced it since."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    schedule: EngineSchedule
    request_id: str
    conflict_token: bytes = b""
    identity: str = ""


class PatchSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Trigger, backfill, pause or unpause a schedule. `pause` and `unpause` are the notes to leave."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    request_id: str
    trigger: OverlapPolicy | None = None
    backfill: tuple[Backfill, ...] = ()
    pause: str | None = None
    unpause: str | None = None
    identity: str = ""


class DeleteSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Delete a schedule. Workflows that it started continue."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    identity: str = ""


class ListSchedules(Request[SchedulePage], frozen=True, kw_only=True):
    """List schedules."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


FIRST_YEAR, LAST_YEAR = 2000, 2100

_SHORTHANDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


class Field(NamedTuple):
    """A field of a calendar: its valid numbers, and names for some of them."""

    name: str
    what: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    shortest: int = 0


FIELDS: tuple[Field, ...] = (
    Field("second", "seconds", 0, 59),
    Field("minute", "minutes", 0, 59),
    Field("hour", "hours", 0, 23),
    Field("day_of_month", "days of the month", 1, 31),
    Field("month", "months", 1, 12, _MONTHS, 3),
    Field("day_of_week", "days of the week", 0, 6, _DAYS, 2),
    Field("year", "years", FIRST_YEAR, LAST_YEAR),
)
_PLACES = {5: FIELDS[1:6], 6: FIELDS[1:], 7: FIELDS}

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h|d)")


class Cron(NamedTuple):
    """A parsed cron string: a calendar or an interval, and its time zone, if any."""

    calendar: CalendarSpec | None
    interval: IntervalSpec | None
    time_zone: str = ""


def parse_cron(text: str) -> Cron:
    """Parse a cron string. Raises `UsageError`."""
    expression, zone = text.strip(), ""
    if expression.startswith(("TZ=", "CRON_TZ=")):
        head, _, expression = expression.partition(" ")
        zone = head.partition("=")[2]
    expression, _, comment = expression.partition("#")
    expression = expression.strip()
    if expression.startswith("@every"):
        return Cron(None, _cron_interval(expression, text))
    words = _SHORTHANDS.get(expression, expression).split()
    places = _PLACES.get(len(words))
    if places is None:
        raise _wrong(
            text, f"it has {len(words)} fields, not 5, 6 (with a year) or 7 (with seconds and a year)"
        )
    ranges = {field.name: _ranges(word, field, text) for field, word in zip(places, words, strict=True)}
    return Cron(CalendarSpec(**ranges, comment=comment.strip()), None, zone)


def _cron_interval(expression: str, text: str) -> IntervalSpec:
    head, _, words = expression.partition(" ")
    if head != "@every":
        raise _wrong(text, "after @every there must be a blank and a duration")
    every, _, offset = words.partition("/")
    return IntervalSpec(_duration(every, text), _duration(offset, text) if offset else 0.0)


def _duration(words: str, text: str) -> float:
    amounts = _AMOUNT.findall(words)
    if not amounts or "".join(number + unit for number, unit in amounts) != words:
        raise _wrong(text, f"{words!r} is no duration such as 90s, 15m, 1h30m or 2d")
    return float(sum(float(number) * _UNITS[unit] for number, unit in amounts))


def _ranges(word: str, field: Field, text: str) -> tuple[Range, ...]:
    if word == "*" and field.name == "year":
        return ()
    return tuple(parsed for part in word.split(",") for parsed in _part(part, field, text))


def _part(part: str, field: Field, text: str) -> list[Range]:
    span, slash, every = part.partition("/")
    step = 1
    if slash:
        if not _is_number(every) or int(every) < 1:
            raise _wrong(text, f"the step of {part!r} must be a whole number from 1 on")
        step = int(every)
    highest = 7 if field.name == "day_of_week" else field.high
    first, dash, last = span.partition("-")
    if span == "*":
        start, end = field.low, highest
    else:
        start = _number(first, field, highest, text)
        end = _number(last, field, highest, text) if dash else (highest if slash else start)
    if end < start:
        raise _wrong(text, f"the {field.what} of {part!r} end before they start")
    if field.name == "day_of_week" and end == 7:
        return _with_sunday(start, step)
    return [Range(start, end, step)]


def _with_sunday(start: int, step: int) -> list[Range]:
    """Return the ranges for a range of weekdays up to 7, which is Sunday and therefore also 0."""
    if start == 7:
        return [Range(0, 0)]
    sunday = [Range(0, 0)] if (7 - start) % step == 0 and (step > 1 or start > 1) else []
    return [*sunday, Range(start, 6, step)]


def _number(word: str, field: Field, highest: int, text: str) -> int:
    lower = word.lower()
    if field.names and len(lower) >= field.shortest:
        for at, name in enumerate(field.names):
            if name.startswith(lower):
                return at + field.low
    if _is_number(word) and field.low <= int(word) <= highest:
        return int(word)
    names = f", or names such as {field.names[1][:3]}" if field.names else ""
    raise _wrong(text, f"{word!r} is not among the {field.what}: {field.low} to {highest}{names}")


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"the cron string {text!r} makes no sense: {why}")


_LONGEST_COMMENT = 200
_LONGEST_INTERVAL = 2**63 / 1e9  # seconds: servers count nanoseconds in 64 bits


def canonical(spec: EngineScheduleSpec) -> EngineScheduleSpec:
    """Return the spec without cron strings and with all defaults filled in. Raises `UsageError` for an invalid spec."""
    crons = [parse_cron(text) for text in spec.cron_expressions]
    zone = _zone_of(spec, crons)
    calendars = (*spec.calendars, *(cron.calendar for cron in crons if cron.calendar is not None))
    intervals = (*spec.intervals, *(cron.interval for cron in crons if cron.interval is not None))
    if spec.start_at_ns and spec.end_at_ns and spec.end_at_ns < spec.start_at_ns:
        raise UsageError("the schedule ends before it starts: end_at lies before start_at")
    return msgspec.structs.replace(
        spec,
        calendars=tuple(_calendar(calendar) for calendar in calendars),
        intervals=tuple(_interval(interval) for interval in intervals),
        cron_expressions=(),
        skip=tuple(_calendar(skipped) for skipped in spec.skip),
        time_zone=zone,
    )


def is_empty(spec: EngineScheduleSpec) -> bool:
    """Whether the spec names no time."""
    return not (spec.calendars or spec.intervals or spec.cron_expressions)


def load_zone(name: str, definition: bytes = b"") -> ZoneInfo:
    """Return a time zone from its definition, if set, else by name; an empty name is UTC. Raises `UsageError`."""
    try:
        if definition:
            return ZoneInfo.from_file(BytesIO(definition), name or None)
        return ZoneInfo(name or "UTC")
    except Exception:  # zoneinfo raises many kinds of errors
        raise UsageError(
            f"there is no time zone {name!r}: give a name of the IANA database, such as Europe/Berlin or UTC"
        ) from None


def _zone_of(spec: EngineScheduleSpec, crons: list[Cron]) -> str:
    named = {cron.time_zone for cron in crons}
    if len(named) > 1:
        raise UsageError(
            "all cron strings of a schedule must name the same time zone, or none: set time_zone_name instead"
        )
    zone = next(iter(named), "")
    if zone and (spec.time_zone_data or spec.time_zone not in ("", zone)):
        raise UsageError(
            f"a cron string names the time zone {zone!r}, and the schedule another one, {spec.time_zone!r}"
        )
    zone = zone or spec.time_zone
    load_zone(zone, spec.time_zone_data)
    return zone


def _calendar(calendar: CalendarSpec) -> CalendarSpec:
    if len(calendar.comment) > _LONGEST_COMMENT:
        raise UsageError(f"the comment of a calendar is longer than {_LONGEST_COMMENT} characters")
    ranges = {
        field.name: tuple(_range(numbers, field) for numbers in getattr(calendar, field.name))
        for field in FIELDS
    }
    return CalendarSpec(**ranges, comment=calendar.comment)


def _range(numbers: Range, field: Field) -> Range:
    start, step = numbers.start, numbers.step or 1
    end = max(numbers.start, numbers.end)
    if not field.low <= start <= field.high or end > field.high or 0 < numbers.end < start or step < 0:
        raise UsageError(
            f"{field.what} go from {field.low} to {field.high}, in steps from 1 on: "
            f"there is no range from {numbers.start} to {numbers.end} in steps of {numbers.step}"
        )
    return Range(start, end, step)


def _interval(interval: IntervalSpec) -> IntervalSpec:
    if interval.every < 1:
        raise UsageError(f"an interval is at least a second, not {interval.every:g} s")
    if interval.every >= _LONGEST_INTERVAL:
        raise UsageError("an interval is shorter than 292 years")
    if not 0 <= interval.offset < interval.every:
        raise UsageError(
            f"the offset of an interval is shorter than the interval: {interval.offset:g} s of {interval.every:g} s"
        )
    return interval
