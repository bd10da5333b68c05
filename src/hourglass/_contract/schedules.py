"""Schedules as engines take them: what starts workflows again and again, as frozen data; the requests about them;
their cron strings in Temporal's dialect, read into calendars and intervals; and the checks that a server makes of a
spec.

Must not know: clocks, stores, the wire. Pure. The vocabulary is Temporal's; times are nanoseconds since the epoch,
durations seconds; 0, None or empty means unset. `canonical` is what a server shows of a spec that it was given; the
engine's search for times starts from it.

The cron dialect is the server's, not crontab's, so that both engines agree:

    5 fields    minute, hour, day of month, month, day of week
    6 fields    the same and a year
    7 fields    seconds first, a year last
    @yearly @annually @monthly @weekly @daily @midnight @hourly
    @every 90m, @every 6h/45m (an interval, and how far it is shifted)
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

# --- data and requests --------------------------------------------------------------------------------------


class OverlapPolicy(IntEnum):
    """What to do when a workflow is due while the one before still runs (Temporal's numbers)."""

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
    """Times whose every part is in one of its ranges. Days of the week count from 0, Sunday; no year means any."""

    second: tuple[Range, ...] = (Range(0),)
    minute: tuple[Range, ...] = (Range(0),)
    hour: tuple[Range, ...] = (Range(0),)
    day_of_month: tuple[Range, ...] = (Range(1, 31),)
    month: tuple[Range, ...] = (Range(1, 12),)
    day_of_week: tuple[Range, ...] = (Range(0, 6),)
    year: tuple[Range, ...] = ()
    comment: str = ""


class IntervalSpec(msgspec.Struct, frozen=True):
    """Every so many seconds since the epoch, shifted by an offset."""

    every: float
    offset: float = 0.0


class EngineScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule acts: at every time that a calendar, an interval or a cron string names and no `skip` does."""

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
    """What a schedule does when things do not go as planned. 0 seconds of catch-up means the engine's default, a year."""

    overlap: OverlapPolicy = OverlapPolicy.SKIP
    catchup_window: float = 0.0
    pause_on_failure: bool = False
    keep_original_workflow_id: bool = False


class EngineScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a schedule acts. `remaining_actions` counts where `limited_actions` is set."""

    note: str = ""
    paused: bool = False
    limited_actions: bool = False
    remaining_actions: int = 0


class EngineSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: its action is to start a workflow, whose id gets the time appended.

    `foreign` is what the engine knows of the action and we have no words for: kept, so that a schedule that another
    SDK made loses nothing when it is updated.
    """

    action: StartWorkflow
    spec: EngineScheduleSpec = EngineScheduleSpec()
    policy: EngineSchedulePolicy = EngineSchedulePolicy()
    state: EngineScheduleState = EngineScheduleState()
    foreign: bytes = b""


class ScheduleAction(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a schedule acted."""

    schedule_time_ns: int
    actual_time_ns: int = 0
    workflow_id: str = ""
    run_id: str = ""


class EngineScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule has done and will do."""

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
    """A schedule in detail. `conflict_token` guards an update against others."""

    schedule_id: str
    schedule: EngineSchedule
    info: EngineScheduleInfo = EngineScheduleInfo()
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    conflict_token: bytes = b""


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list says of a schedule."""

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
    """Some schedules, and where to go on (empty at the end)."""

    schedules: tuple[ScheduleSummary, ...]
    next_page_token: bytes = b""


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """Act for the times of a stretch of the past, as if they were now."""

    start_ns: int
    end_ns: int
    overlap: OverlapPolicy = OverlapPolicy.UNSPECIFIED


class CreateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Create a schedule. Raises `ScheduleAlreadyExistsError` where its id is taken."""

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
    """Look at a schedule."""

    effect: ClassVar[Effect] = Effect.READ
    schedule_id: str


class UpdateSchedule(Request[Nothing], frozen=True, kw_only=True):
    """Replace a schedule. With a `conflict_token`: only if no other client has since."""

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
    """Delete a schedule; workflows that it started go on."""

    effect: ClassVar[Effect] = Effect.CHANGE
    schedule_id: str
    identity: str = ""


class ListSchedules(Request[SchedulePage], frozen=True, kw_only=True):
    """List schedules."""

    effect: ClassVar[Effect] = Effect.READ
    query: str = ""
    page_size: int = 100
    next_page_token: bytes = b""


# --- cron strings -------------------------------------------------------------------------------------------


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
    """A part of a calendar time: the numbers it can have, and the names of some of them."""

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
    """What a cron string says: a calendar or an interval, and the time zone it names, if any."""

    calendar: CalendarSpec | None
    interval: IntervalSpec | None
    time_zone: str = ""


def parse_cron(text: str) -> Cron:
    """Read a cron string. Raises `UsageError` that says what is wrong with it."""
    rest, zone = text.strip(), ""
    if rest.startswith(("TZ=", "CRON_TZ=")):
        head, _, rest = rest.partition(" ")
        zone = head.partition("=")[2]
    rest, _, comment = rest.partition("#")
    rest = rest.strip()
    if rest.startswith("@every"):
        return Cron(None, _cron_interval(rest, text))
    words = _SHORTHANDS.get(rest, rest).split()
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
    return tuple(each for part in word.split(",") for each in _part(part, field, text))


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
    """A range of weekdays up to 7, which is Sunday again: 0."""
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


# --- a server's checks --------------------------------------------------------------------------------------


_LONGEST_COMMENT = 200
_LONGEST_INTERVAL = 2**63 / 1e9  # seconds: servers count nanoseconds in 64 bits


def canonical(spec: EngineScheduleSpec) -> EngineScheduleSpec:
    """The spec without cron strings and with every default written out. Raises `UsageError` where it makes no sense."""
    crons = [parse_cron(text) for text in spec.cron_expressions]
    zone = _zone_of(spec, crons)
    calendars = (*spec.calendars, *(cron.calendar for cron in crons if cron.calendar is not None))
    intervals = (*spec.intervals, *(cron.interval for cron in crons if cron.interval is not None))
    if spec.start_at_ns and spec.end_at_ns and spec.end_at_ns < spec.start_at_ns:
        raise UsageError("the schedule ends before it starts: end_at lies before start_at")
    return msgspec.structs.replace(
        spec,
        calendars=tuple(_calendar(each) for each in calendars),
        intervals=tuple(_interval(each) for each in intervals),
        cron_expressions=(),
        skip=tuple(_calendar(each) for each in spec.skip),
        time_zone=zone,
    )


def is_empty(spec: EngineScheduleSpec) -> bool:
    """Whether it names no time at all."""
    return not (spec.calendars or spec.intervals or spec.cron_expressions)


def load_zone(name: str, definition: bytes = b"") -> ZoneInfo:
    """A time zone by its definition, if there is one, or its name; UTC where it is empty. Raises `UsageError`."""
    try:
        if definition:
            return ZoneInfo.from_file(BytesIO(definition), name or None)
        return ZoneInfo(name or "UTC")
    except Exception:  # as many kinds as there are ways to misname a file
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
        field.name: tuple(_range(each, field) for each in getattr(calendar, field.name)) for field in FIELDS
    }
    return CalendarSpec(**ranges, comment=calendar.comment)


def _range(given: Range, field: Field) -> Range:
    start, step = given.start, given.step or 1
    end = max(given.start, given.end)
    if not field.low <= start <= field.high or end > field.high or 0 < given.end < start or step < 0:
        raise UsageError(
            f"{field.what} go from {field.low} to {field.high}, in steps from 1 on: "
            f"there is no range from {given.start} to {given.end} in steps of {given.step}"
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
