"""The action times of a schedule, or of a workflow with a cron string. Pure: no clock; reads only the time zone
database.

The rule is the one that Temporal documents: a calendar matches a time if the local wall clock at that time shows numbers
within all ranges of the calendar. A wall time that a clock change skips therefore never matches, and a wall time that a
clock change repeats matches twice. (Temporal's server 1.32 follows this rule where clocks skip an hour, and where clocks
west of Greenwich are set back. East of Greenwich, and where clocks skip half an hour, the server loses or misplaces
times. We follow the rule.)

The cron dialect of workflows is that of the Temporal server, which differs from that of its schedules. There are five
fields. If both the day of the month and the day of the week are restricted, one match is sufficient, as in crontab.
`@every` counts from the previous run, in full seconds. `?` means `*`. Times that pass while a run is open are skipped.

All times are nanoseconds since the epoch. The times of a spec are full seconds, except for their jitter.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from hourglass._contract.cron import FIELDS, LAST_YEAR, parse_cron
from hourglass._contract.schedule_specs import (
    ScheduleCalendarSpec,
    ScheduleIntervalSpec,
    ScheduleSpec,
    nanoseconds_of,
)
from hourglass._contract.spec_checks import canonical, load_zone
from hourglass._embedded.clock import LATEST_NS, SECOND, later, storable
from hourglass._embedded.schedules.calendars import ALL_TIMES, DAY, WallTimes, wall_times
from hourglass.errors import UsageError

NANOS = 1_000_000_000
_SECOND = timedelta(seconds=1)
_END = int(datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC).timestamp())
_STRIDE = 5 * DAY  # no zone changes its offset twice within this period
_BLOCK = 3650 * DAY  # clock changes of a zone are computed and cached for blocks of this length
_LARGEST_SHIFT = 2 * DAY  # an upper bound for how far a clock is set back
_UTC = ZoneInfo("UTC")  # ZoneInfo returns the same object for each lookup by name
_CACHED_SEARCHES = 64  # the number of search results that a timetable caches
_MAX_SKIPS = 10_000  # the number of excluded times that a search skips before it stops

MOST_PARTS = 500
"""The maximum number of calendars, intervals, cron strings and exclusions of a schedule."""
MOST_PAIRS = 10_000
"""The maximum number of exclusions times the number of calendars that they apply to. It limits the work of compiling a
schedule.
"""
MOST_RANGES = 200
"""The maximum number of ranges in a field of a calendar. No field has that many values."""
MOST_INTERVAL_PAIRS = 1_000
"""The maximum number of exclusions times the number of intervals. It limits the work of each search, which may skip many
excluded times.
"""
LONGEST_CRON = 1000
"""The maximum length of a cron string."""


class ScheduledTime(NamedTuple):
    """A time that a spec matches (`nominal_ns`), and the same time with jitter, at which the schedule acts (`due_ns`)."""

    nominal_ns: int
    due_ns: int


class Interval(NamedTuple):
    """An interval of a spec, in full seconds."""

    every: int
    offset: int

    @classmethod
    def of(cls, spec: ScheduleIntervalSpec) -> Interval:
        return cls(spec.every // _SECOND, spec.offset // _SECOND)

    def next(self, second: int) -> int:
        """Return the interval's first time after `second`."""
        return ((second - self.offset) // self.every + 1) * self.every + self.offset


@dataclass(frozen=True)
class Zone:
    """A time zone and its offsets from UTC."""

    info: ZoneInfo

    @property
    def never_changes(self) -> bool:
        """Whether this is UTC itself, as opposed to a zone named UTC in a spec's own time zone data."""
        return self.info is _UTC

    def offset(self, second: int) -> int:
        """Return the zone's offset from UTC at a time, in seconds."""
        utc_offset = datetime.fromtimestamp(second, UTC).astimezone(self.info).utcoffset()
        return 0 if utc_offset is None else int(utc_offset.total_seconds())

    def first_change(self, begin: int, end: int) -> int | None:
        """Return the time of the first clock change after `begin` and up to `end`, inclusive. Return None if there is
        none.
        """
        if self.never_changes:
            return None
        for block in range(begin // _BLOCK, end // _BLOCK + 1):
            changes = _changes(self, block)
            index = bisect_right(changes, begin)
            if index < len(changes):
                return changes[index] if changes[index] <= end else None
        return None


@lru_cache(maxsize=1024)
def _changes(zone: Zone, block: int) -> tuple[int, ...]:
    """Return the times of a zone's clock changes within one block."""
    begin, end = block * _BLOCK - 1, (block + 1) * _BLOCK - 1
    changes: list[int] = []
    offset = zone.offset(begin)
    while begin < end:
        low, high = begin, min(begin + _STRIDE, end)
        if zone.offset(high) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if zone.offset(middle) == offset else (low, middle)
            changes.append(high)
            offset = zone.offset(high)
        begin = high
    return tuple(changes)


def next_match(times: WallTimes, zone: Zone, after: int) -> int | None:
    """Return the first second after `after` at which the zone's wall clock shows one of these times."""
    begin = after + 1
    searched: int | None = None
    wall: int | None = None
    while True:
        offset = zone.offset(begin)
        if searched is None or begin + offset < searched or (wall is not None and begin + offset > wall):
            searched = begin + offset
            wall = times.from_wall(searched)
        # After the last matching wall time, only a clock that is set back can show a matching time again.
        until = times.last + _LARGEST_SHIFT if wall is None else wall - offset
        change = zone.first_change(begin, min(until, _END)) if begin <= until else None
        if change is None:
            return wall if wall is None else until
        # The clock runs evenly until the change, so no time before the change matches. From the change on the wall
        # clock shows other times.
        begin = change


def check_limits(spec: ScheduleSpec) -> None:
    """Raise `UsageError` for a spec that would take the engine too long to compile or search."""
    part_count = len(spec.calendars) + len(spec.intervals) + len(spec.cron_expressions)
    if part_count + len(spec.skip) > MOST_PARTS:
        raise UsageError(
            f"the schedule has {part_count + len(spec.skip)} calendars, intervals, cron strings and exclusions; at most "
            f"{MOST_PARTS} are allowed. Use several schedules, or ranges"
        )
    if part_count * len(spec.skip) > MOST_PAIRS:
        raise UsageError(
            f"the schedule excludes {len(spec.skip)} calendars from {part_count}; the product of the two numbers must "
            f"be at most {MOST_PAIRS}. Use several schedules, or ranges"
        )
    if len(spec.intervals) * len(spec.skip) > MOST_INTERVAL_PAIRS:
        raise UsageError(
            f"the schedule excludes {len(spec.skip)} calendars from {len(spec.intervals)} intervals; the product of the "
            f"two numbers must be at most {MOST_INTERVAL_PAIRS}. Use several schedules, or ranges"
        )
    if any(len(text) > LONGEST_CRON for text in spec.cron_expressions):
        raise UsageError(f"a cron string of the schedule is longer than {LONGEST_CRON} characters")
    for calendar in (*spec.calendars, *spec.skip):
        for field in FIELDS:
            if len(getattr(calendar, field.name)) > MOST_RANGES:
                raise UsageError(
                    f"a calendar of the schedule has more than {MOST_RANGES} ranges of {field.what}"
                )


class Timetable:
    """The action times of one schedule. The jitter depends on the time and on `seed`, the schedule's id.

    The cost of a search does not depend on how far away the next time is, or whether there is one. The latest results
    are cached, so that a thread can search ahead of the control loop. A timetable may therefore be used in several
    threads.
    """

    def __init__(self, spec: ScheduleSpec, seed: str = "") -> None:
        check_limits(spec)
        self.spec = canonical(spec)
        self._seed = seed
        self._intervals = tuple(map(Interval.of, self.spec.intervals))
        self._zone = Zone(load_zone(self.spec.time_zone_name or "", self.spec._time_zone_data))
        self._matching = wall_times(self.spec.calendars)
        self._remaining = self._matching.without(self.spec.skip) if self.spec.skip else self._matching
        self._allowed = ALL_TIMES.without(self.spec.skip) if self.spec.skip else ALL_TIMES
        self._allowed_by_step: dict[tuple[int, int], WallTimes] = {}
        self._exhausted_ns = LATEST_NS  # there are no times from here on; set by the search that found none
        self._cache: tuple[tuple[int, ScheduledTime], ...] = ()  # seconds, each with the first time after it

    @property
    def size(self) -> int:
        """The number of sets of times that each search must examine."""
        return len(self._remaining.products) + len(self.spec.intervals)

    def next(self, after_ns: int) -> ScheduledTime | None:
        """Return the first time after `after_ns`, or None if there is none."""
        if after_ns >= self._exhausted_ns:
            return None
        second = storable(after_ns) // NANOS
        for searched, moment in self._cache:
            if searched <= second < moment.nominal_ns // NANOS:
                return moment
        result = self._search(after_ns)
        if result is None:
            self._exhausted_ns = after_ns
        else:
            self._cache = (*self._cache[1 - _CACHED_SEARCHES :], (second, result))
        return result

    def moments(self, after_ns: int) -> Iterator[ScheduledTime]:
        """Yield all times after `after_ns`, in order."""
        moment = self.next(after_ns)
        while moment is not None:
            yield moment
            moment = self.next(moment.due_ns)

    def _search(self, after_ns: int) -> ScheduledTime | None:
        spec = self.spec
        second = storable(after_ns) // NANOS
        if spec.start_at is not None:
            second = max(second, storable(nanoseconds_of(spec.start_at)) // NANOS - 1)
        candidates = [next_match(self._remaining, self._zone, second)]
        candidates += [self._next_allowed(interval, second) for interval in self._intervals]
        nominal = min((time for time in candidates if time is not None), default=None)
        if nominal is None or nominal * NANOS >= LATEST_NS:
            return None
        if spec.end_at is not None and nominal * NANOS > nanoseconds_of(spec.end_at):
            return None
        return ScheduledTime(nominal * NANOS, later(nominal * NANOS, self._jitter(nominal)))

    def _next_allowed(self, interval: Interval, second: int) -> int | None:
        """Return the interval's first time after `second` that is not excluded, or None if the search finds none."""
        time = interval.next(second)
        if not self.spec.skip:
            return time
        for _ in range(max(100, _MAX_SKIPS // len(self.spec.intervals))):
            if time >= _END:
                return None
            offset = self._zone.offset(time)
            wall = self._allowed_of(interval, offset).from_wall(time + offset)
            allowed = _END if wall is None else wall - offset
            change = self._zone.first_change(time, allowed)
            if change is not None:
                allowed = change
            elif allowed == time:
                return time
            time = interval.next(allowed - 1)
        return None

    def _allowed_of(self, interval: Interval, offset: int) -> WallTimes:
        """Return the times that are not excluded and that this interval can match at this offset from UTC."""
        step = math.gcd(interval.every, DAY)
        key = step, (interval.offset + offset) % step
        if key not in self._allowed_by_step:
            self._allowed_by_step[key] = self._allowed.every(*key)
        return self._allowed_by_step[key]

    def _jitter(self, second: int) -> int:
        """Return the delay caused by jitter, in nanoseconds. It is shorter than the time until the next match."""
        max_ms = 0 if self.spec.jitter is None else self.spec.jitter // timedelta(milliseconds=1)
        if not max_ms:
            return 0
        candidates = [next_match(self._matching, self._zone, second)]
        candidates += [interval.next(second) for interval in self._intervals]
        following = min((time for time in candidates if time is not None), default=None)
        if following is not None:
            max_ms = min(max_ms, (following - second) * 1000)
        digest = hashlib.blake2b(f"{second}:{self._seed}".encode(), digest_size=4).digest()
        return (int.from_bytes(digest) * max_ms >> 32) * 1_000_000


_CRON_FIELDS = 5


def check_cron(text: str) -> None:
    """Raise `UsageError` if the cron string is invalid for a workflow."""
    _parse_schedule(text)


def backoff_until_next(text: str, since_ns: int, now_ns: int) -> float | None:
    """Return the seconds until the next run of a cron workflow, rounded up, or None if there is no further run.

    `since_ns` is the scheduled time of the previous run.
    """
    schedule = _parse_schedule(text)
    following = _next(schedule, since_ns)
    while following is not None and following < now_ns:
        if isinstance(schedule, int):
            following += (now_ns - following + schedule - 1) // schedule * schedule
        else:
            following = _next(schedule, max(following, now_ns - 1))
    return None if following is None else float(math.ceil((following - now_ns) / SECOND))


def _next(schedule: Timetable | int, after_ns: int) -> int | None:
    if isinstance(schedule, int):
        return (after_ns // SECOND) * SECOND + schedule
    moment = schedule.next(after_ns)
    return None if moment is None else moment.nominal_ns


@lru_cache(maxsize=256)
def _parse_schedule(text: str) -> Timetable | int:
    """Return the timetable of a cron string, or for `@every` the nanoseconds from run to run."""
    cron = parse_cron(text.replace("?", "*"))
    if cron.interval is not None:
        if "/" in text:
            raise UsageError(
                f"the cron string {text!r} is invalid for a workflow: @every must be followed by one duration"
            )
        return max(cron.interval.every // _SECOND, 1) * SECOND
    assert cron.calendar is not None
    words = text.partition("#")[0].split()
    fields = [word for word in words if "=" not in word]
    if not fields[0].startswith("@") and len(fields) != _CRON_FIELDS:
        raise UsageError(
            f"the cron string {text!r} is invalid for a workflow: it has {len(fields)} fields instead of {_CRON_FIELDS}"
        )
    calendars = _either_day(cron.calendar, fields) if len(fields) == _CRON_FIELDS else (cron.calendar,)
    return Timetable(ScheduleSpec(calendars=calendars, time_zone_name=cron.time_zone))


def _either_day(calendar: ScheduleCalendarSpec, fields: list[str]) -> tuple[ScheduleCalendarSpec, ...]:
    if any(_is_any(fields[index]) for index in (2, 4)):
        return (calendar,)
    every = parse_cron("* * * * *").calendar
    assert every is not None
    return (
        replace(calendar, day_of_month=every.day_of_month),
        replace(calendar, day_of_week=every.day_of_week),
    )


def _is_any(field: str) -> bool:
    return any(part in ("*", "?", "*/1", "?/1") for part in field.split(","))
