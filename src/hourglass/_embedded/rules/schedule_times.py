"""When a schedule, or a workflow with a cron string, acts: the times that a spec names, one after the other. Pure: no
clock, the zone database aside.

The rule is the one that Temporal documents: a calendar matches a time if the wall clock of its zone, read at that
time, shows numbers that are all in its ranges. So a wall time that a clock change leaps over never comes, and one
that it repeats comes twice. (Temporal's server 1.32 keeps to it where clocks leap over an hour, and where they go
back west of Greenwich; east of it, and where they leap over half an hour, it loses or misplaces times. We keep to the
rule.)

The cron dialect of workflows is the Temporal server's, and not the one of its schedules: five fields; where both a
day of the month and a day of the week are given either is enough, as in crontab; `@every` counts from the run before,
in whole seconds, and `?` is `*`. Times in between that have passed when a run ends are left out.

All times are nanoseconds since the epoch; times of a spec are whole seconds, but for their jitter.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from hourglass._contract.schedules import (
    LAST_YEAR,
    CalendarSpec,
    EngineScheduleSpec,
    IntervalSpec,
    Range,
    canonical,
    load_zone,
    parse_cron,
)
from hourglass._embedded.clock import LATEST_NS, SECOND, later, storable
from hourglass.errors import UsageError

NANOS = 1_000_000_000
_DAY = 86400
_EPOCH = datetime(1970, 1, 1)  # without a zone: what a wall clock shows is counted as if it were UTC
_END = int((datetime(LAST_YEAR + 1, 1, 1) - _EPOCH).total_seconds())
_STRIDE = 5 * _DAY  # no zone changes its offset twice within so short a time
_UTC = ZoneInfo("UTC")  # the same object whenever it is asked for by name
_PATIENCE = 10_000  # steps over what is skipped, up to a day each, before a spec counts as exhausted

Numbers = tuple[int, ...]


class ScheduledTime(NamedTuple):
    """A time that a spec names, and the same with its jitter: when to act."""

    nominal_ns: int
    due_ns: int


# --- wall clocks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calendar:
    """A calendar's ranges as sorted numbers. No years mean any."""

    second: Numbers
    minute: Numbers
    hour: Numbers
    day_of_month: frozenset[int]
    month: frozenset[int]
    day_of_week: frozenset[int]
    year: frozenset[int]

    def shows(self, wall: int) -> bool:
        """Whether a wall clock that shows this matches."""
        time = _EPOCH + timedelta(seconds=wall)
        return (
            self._has_day(time)
            and time.hour in self.hour
            and time.minute in self.minute
            and time.second in self.second
        )

    def from_wall(self, wall: int) -> int | None:
        """The first matching time that a clock would show from this one on, if it were never changed."""
        if wall >= _END:
            return None
        day, second = divmod(wall, _DAY)
        inner = self._within_day(second) if self._has_day(_EPOCH + timedelta(days=day)) else None
        if inner is not None:
            return day * _DAY + inner
        first = self._within_day(0)
        following = None if first is None else self._next_day(day + 1)
        return None if first is None or following is None else following * _DAY + first

    def length_of_match(self, wall: int) -> int:
        """For how many seconds from a match on it surely goes on: to the end of its minute, hour or day."""
        if len(self.second) < 60:
            return 1
        if len(self.minute) < 60:
            return 60 - wall % 60
        return 3600 - wall % 3600 if len(self.hour) < 24 else _DAY - wall % _DAY

    def _within_day(self, second: int) -> int | None:
        """The first match from this second of a day on, within the day."""
        now = (second // 3600, second // 60 % 60, second % 60)
        for hour in self.hour[bisect_left(self.hour, now[0]) :]:
            minutes = self.minute if hour > now[0] else self.minute[bisect_left(self.minute, now[1]) :]
            for minute in minutes:
                later = (hour, minute) > now[:2]
                at = 0 if later else bisect_left(self.second, now[2])
                if at < len(self.second):
                    return hour * 3600 + minute * 60 + self.second[at]
        return None

    def _next_day(self, day: int) -> int | None:
        while day * _DAY < _END:
            date = _EPOCH + timedelta(days=day)
            if self._has_day(date):
                return day
            if self.year and date.year not in self.year:
                day = (date.replace(year=date.year + 1, month=1, day=1) - _EPOCH).days
            elif date.month not in self.month:
                following = (date.replace(day=1) + timedelta(days=32)).replace(day=1)
                day = (following - _EPOCH).days
            else:
                day += 1
        return None

    def _has_day(self, date: datetime) -> bool:
        return (
            date.day in self.day_of_month
            and date.month in self.month
            and date.isoweekday() % 7 in self.day_of_week
            and (not self.year or date.year in self.year)
        )


def compiled(spec: CalendarSpec) -> Calendar:
    """A calendar of a canonical spec, ready to be asked."""
    return Calendar(
        second=_numbers(spec.second),
        minute=_numbers(spec.minute),
        hour=_numbers(spec.hour),
        day_of_month=frozenset(_numbers(spec.day_of_month)),
        month=frozenset(_numbers(spec.month)),
        day_of_week=frozenset(_numbers(spec.day_of_week)),
        year=frozenset(_numbers(spec.year)),
    )


def _numbers(ranges: tuple[Range, ...]) -> Numbers:
    return tuple(sorted({number for each in ranges for number in range(each.start, each.end + 1, each.step)}))


# --- zones --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Zone:
    """How far a place's clocks are ahead of UTC."""

    info: ZoneInfo

    @property
    def never_changes(self) -> bool:
        """Whether it is UTC itself, not a zone by that name whose data came with a spec."""
        return self.info is _UTC

    def offset(self, second: int) -> int:
        """Seconds ahead of UTC at this time."""
        ahead = datetime.fromtimestamp(second, UTC).astimezone(self.info).utcoffset()
        return 0 if ahead is None else int(ahead.total_seconds())

    def first_change(self, begin: int, end: int) -> int | None:
        """The first time after `begin`, `end` included, at which the clocks are changed."""
        if self.never_changes:
            return None
        offset = self.offset(begin)
        low = begin
        while low < end:
            high = min(low + _STRIDE, end)
            if self.offset(high) != offset:
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if self.offset(middle) == offset else (low, middle)
                return high
            low = high
        return None


def next_match(calendar: Calendar, zone: Zone, after: int) -> int | None:
    """The first second after this one at which the zone's clocks match the calendar."""
    begin = after + 1
    searched: int | None = None
    wall: int | None = None
    while True:
        offset = zone.offset(begin)
        if searched is None or begin + offset < searched or (wall is not None and begin + offset > wall):
            searched = begin + offset
            wall = calendar.from_wall(searched)
        until = _END if wall is None else wall - offset
        change = zone.first_change(begin, min(until, _END))
        if change is None:
            return None if wall is None else until
        # Up to the change the clock runs evenly, so that nothing there matches; from then on it shows other times.
        begin = change


# --- specs --------------------------------------------------------------------------------------------------


class Timetable:
    """The times of one schedule. `seed` is what its jitter depends on besides the time: the schedule's id."""

    def __init__(self, spec: EngineScheduleSpec, seed: str = "") -> None:
        self.spec = canonical(spec)
        self._seed = seed
        self._zone = Zone(load_zone(self.spec.time_zone, self.spec.time_zone_data))
        self._calendars = [compiled(each) for each in self.spec.calendars]
        self._skip = [compiled(each) for each in self.spec.skip]

    def next(self, after_ns: int) -> ScheduledTime | None:
        """The first moment after this time; None where there is none any more."""
        spec = self.spec
        second = storable(after_ns) // NANOS
        if spec.start_at_ns:
            second = max(second, storable(spec.start_at_ns) // NANOS - 1)
        for _ in range(_PATIENCE):
            found = self._raw(second)
            if (
                found is None
                or found * NANOS >= LATEST_NS
                or (spec.end_at_ns and found * NANOS > spec.end_at_ns)
            ):
                return None
            skipped = self._skipped(found)
            if not skipped:
                return ScheduledTime(found * NANOS, later(found * NANOS, self._jitter(found)))
            second = found + skipped - 1
        return None

    def moments(self, after_ns: int) -> Iterator[ScheduledTime]:
        """All moments after this time, in order."""
        moment = self.next(after_ns)
        while moment is not None:
            yield moment
            moment = self.next(moment.due_ns)

    def _raw(self, second: int) -> int | None:
        found = [next_match(calendar, self._zone, second) for calendar in self._calendars]
        found += [_next_of(interval, second) for interval in self.spec.intervals]
        return min((each for each in found if each is not None), default=None)

    def _skipped(self, second: int) -> int:
        """For how many seconds from this one on everything is skipped; 0 where it is not."""
        if not self._skip:
            return 0
        wall = second + self._zone.offset(second)
        longest = max((each.length_of_match(wall) for each in self._skip if each.shows(wall)), default=0)
        if longest <= 1:
            return longest
        change = self._zone.first_change(second, second + longest - 1)
        return longest if change is None else change - second

    def _jitter(self, second: int) -> int:
        """How much later to act: never as late as the time that follows."""
        longest = int(self.spec.jitter * 1000)
        if not longest:
            return 0
        following = self._raw(second)
        if following is not None:
            longest = min(longest, (following - second) * 1000)
        digest = hashlib.blake2b(f"{second}:{self._seed}".encode(), digest_size=4).digest()
        return (int.from_bytes(digest) * longest >> 32) * 1_000_000


def _next_of(interval: IntervalSpec, second: int) -> int:
    every, offset = int(interval.every), int(interval.offset)
    return ((second - offset) // every + 1) * every + offset


# --- cron strings of workflows ------------------------------------------------------------------------------

_FIELDS = 5


def check_cron(text: str) -> None:
    """Raise `UsageError` for a cron schedule that a workflow cannot have."""
    _plan(text)


def backoff_until_next(text: str, since_ns: int, now_ns: int) -> float | None:
    """Seconds, rounded up, until the next run of a schedule; `since_ns` is when the run before was to begin.
    None where there is none any more.
    """
    plan = _plan(text)
    following = _next(plan, since_ns)
    while following is not None and following < now_ns:
        if isinstance(plan, int):
            following += (now_ns - following + plan - 1) // plan * plan
        else:
            following = _next(plan, max(following, now_ns - 1))
    return None if following is None else float(math.ceil((following - now_ns) / SECOND))


def _next(plan: Timetable | int, after_ns: int) -> int | None:
    if isinstance(plan, int):
        return (after_ns // SECOND) * SECOND + plan
    moment = plan.next(after_ns)
    return None if moment is None else moment.nominal_ns


@lru_cache(maxsize=256)
def _plan(text: str) -> Timetable | int:
    """A timetable, or nanoseconds from run to run."""
    cron = parse_cron(text.replace("?", "*"))
    if cron.interval is not None:
        if "/" in text:
            raise UsageError(
                f"the cron string {text!r} makes no sense for a workflow: @every takes one duration"
            )
        return max(int(cron.interval.every), 1) * SECOND
    assert cron.calendar is not None
    words = text.partition("#")[0].split()
    fields = [word for word in words if "=" not in word]
    if not fields[0].startswith("@") and len(fields) != _FIELDS:
        raise UsageError(
            f"the cron string {text!r} makes no sense for a workflow: it has {len(fields)} fields, not {_FIELDS}"
        )
    calendars = _either_day(cron.calendar, fields) if len(fields) == _FIELDS else (cron.calendar,)
    return Timetable(EngineScheduleSpec(calendars=calendars, time_zone=cron.time_zone))


def _either_day(calendar: CalendarSpec, fields: list[str]) -> tuple[CalendarSpec, ...]:
    if any(_is_any(fields[place]) for place in (2, 4)):
        return (calendar,)
    every = parse_cron("* * * * *").calendar
    assert every is not None
    return (
        msgspec.structs.replace(calendar, day_of_month=every.day_of_month),
        msgspec.structs.replace(calendar, day_of_week=every.day_of_week),
    )


def _is_any(field: str) -> bool:
    return any(part in ("*", "?", "*/1", "?/1") for part in field.split(","))
