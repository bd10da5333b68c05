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
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from hourglass._contract.cron import FIELDS, LAST_YEAR, parse_cron
from hourglass._contract.schedules import CalendarSpec, EngineScheduleSpec, IntervalSpec
from hourglass._contract.spec_checks import canonical, load_zone
from hourglass._embedded.clock import LATEST_NS, SECOND, later, storable
from hourglass._embedded.schedules.calendars import ALL_TIMES, DAY, WallTimes, wall_times
from hourglass.errors import UsageError

NANOS = 1_000_000_000
_END = int(datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC).timestamp())
_STRIDE = 5 * DAY  # no zone changes its offset twice within so short a time
_BLOCK = 3650 * DAY  # the changes of a zone are found for so many seconds at once, and remembered
_LARGEST_SHIFT = 2 * DAY  # no change sets a clock back so far
_UTC = ZoneInfo("UTC")  # the same object whenever it is asked for by name
_REMEMBERED = 64  # searches whose results a timetable keeps
_PATIENCE = 10_000  # steps of all intervals together over what is skipped, before they count as exhausted

MOST_PARTS = 500
"""Calendars, intervals, cron strings and exclusions that a schedule may have."""
MOST_PAIRS = 10_000
"""Exclusions times what they exclude from: the work of compiling a schedule."""
MOST_RANGES = 200
"""Ranges that a field of a calendar may have; there are fewer numbers than that in each."""
MOST_INTERVAL_PAIRS = 1_000
"""Exclusions times intervals: the work of each search, which may have to step over many times that are excluded."""
LONGEST_CRON = 1000
"""Characters of a cron string."""


class ScheduledTime(NamedTuple):
    """A time that a spec names, and the same with its jitter: when to act."""

    nominal_ns: int
    due_ns: int


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
        for block in range(begin // _BLOCK, end // _BLOCK + 1):
            changes = _changes(self, block)
            place = bisect_right(changes, begin)
            if place < len(changes):
                return changes[place] if changes[place] <= end else None
        return None


@lru_cache(maxsize=1024)
def _changes(zone: Zone, block: int) -> tuple[int, ...]:
    """Return the times at which a zone's clocks are changed, within one block of time."""
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
    """The first second after this one at which the zone's clocks show one of these times."""
    begin = after + 1
    searched: int | None = None
    wall: int | None = None
    while True:
        offset = zone.offset(begin)
        if searched is None or begin + offset < searched or (wall is not None and begin + offset > wall):
            searched = begin + offset
            wall = times.from_wall(searched)
        # Once the last time has passed, only a clock that is set back can show it again.
        until = times.last + _LARGEST_SHIFT if wall is None else wall - offset
        change = zone.first_change(begin, min(until, _END)) if begin <= until else None
        if change is None:
            return wall if wall is None else until
        # Up to the change the clock runs evenly, so that nothing there matches; from then on it shows other times.
        begin = change


# --- specs --------------------------------------------------------------------------------------------------


def check_limits(spec: EngineScheduleSpec) -> None:
    """Raise `UsageError` for a spec that would cost the engine too much."""
    named = len(spec.calendars) + len(spec.intervals) + len(spec.cron_expressions)
    if named + len(spec.skip) > MOST_PARTS:
        raise UsageError(
            f"the schedule has {named + len(spec.skip)} calendars, intervals, cron strings and exclusions; at most "
            f"{MOST_PARTS} are allowed: use several schedules, or ranges"
        )
    if named * len(spec.skip) > MOST_PAIRS:
        raise UsageError(
            f"the schedule excludes {len(spec.skip)} calendars from {named}; the product must be at most "
            f"{MOST_PAIRS}: use several schedules, or ranges"
        )
    if len(spec.intervals) * len(spec.skip) > MOST_INTERVAL_PAIRS:
        raise UsageError(
            f"the schedule excludes {len(spec.skip)} calendars from {len(spec.intervals)} intervals; the product must be at most "
            f"{MOST_INTERVAL_PAIRS}: use several schedules, or ranges"
        )
    if any(len(text) > LONGEST_CRON for text in spec.cron_expressions):
        raise UsageError(f"a cron string of the schedule is longer than {LONGEST_CRON} characters")
    for calendar in (*spec.calendars, *spec.skip):
        for field in FIELDS:
            if len(getattr(calendar, field.name)) > MOST_RANGES:
                raise UsageError(
                    f"a calendar of the schedule names more than {MOST_RANGES} ranges of {field.what}"
                )


class Timetable:
    """The times of one schedule. `seed` is what its jitter depends on besides the time: the schedule's id.

    What one search costs does not depend on how far away the next time is, or whether there is one. The latest results are
    remembered, so that a thread can search ahead of the control loop: a timetable may be used in several threads.
    """

    def __init__(self, spec: EngineScheduleSpec, seed: str = "") -> None:
        check_limits(spec)
        self.spec = canonical(spec)
        self._seed = seed
        self._zone = Zone(load_zone(self.spec.time_zone, self.spec.time_zone_data))
        self._named = wall_times(self.spec.calendars)
        self._left = self._named.without(self.spec.skip) if self.spec.skip else self._named
        self._allowed = ALL_TIMES.without(self.spec.skip) if self.spec.skip else ALL_TIMES
        self._of_interval: dict[tuple[int, int], WallTimes] = {}
        self._ends = LATEST_NS  # from here on there is no time any more: found by a search, and remembered
        self._found: tuple[tuple[int, ScheduledTime], ...] = ()  # seconds, and the first moment after each

    @property
    def size(self) -> int:
        """How many sets of times a search looks at."""
        return len(self._left.products) + len(self.spec.intervals)

    def next(self, after_ns: int) -> ScheduledTime | None:
        """The first moment after this time; None where there is none any more."""
        if after_ns >= self._ends:
            return None
        second = storable(after_ns) // NANOS
        for searched, moment in self._found:
            if searched <= second < moment.nominal_ns // NANOS:
                return moment
        found = self._search(after_ns)
        if found is None:
            self._ends = after_ns
        else:
            self._found = (*self._found[1 - _REMEMBERED :], (second, found))
        return found

    def moments(self, after_ns: int) -> Iterator[ScheduledTime]:
        """All moments after this time, in order."""
        moment = self.next(after_ns)
        while moment is not None:
            yield moment
            moment = self.next(moment.due_ns)

    def _search(self, after_ns: int) -> ScheduledTime | None:
        spec = self.spec
        second = storable(after_ns) // NANOS
        if spec.start_at_ns:
            second = max(second, storable(spec.start_at_ns) // NANOS - 1)
        candidates = [next_match(self._left, self._zone, second)]
        candidates += [self._next_allowed(interval, second) for interval in spec.intervals]
        nominal = min((time for time in candidates if time is not None), default=None)
        if nominal is None or nominal * NANOS >= LATEST_NS:
            return None
        if spec.end_at_ns and nominal * NANOS > spec.end_at_ns:
            return None
        return ScheduledTime(nominal * NANOS, later(nominal * NANOS, self._jitter(nominal)))

    def _next_allowed(self, interval: IntervalSpec, second: int) -> int | None:
        """Return the interval's first time after this second that is not skipped."""
        time = _next_of(interval, second)
        if not self.spec.skip:
            return time
        for _ in range(max(100, _PATIENCE // len(self.spec.intervals))):
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
            time = _next_of(interval, allowed - 1)
        return None

    def _allowed_of(self, interval: IntervalSpec, offset: int) -> WallTimes:
        """Return what is not skipped of the seconds of a day that an interval can meet, with clocks ahead by this."""
        step = math.gcd(int(interval.every), DAY)
        key = step, (int(interval.offset) + offset) % step
        if key not in self._of_interval:
            self._of_interval[key] = self._allowed.every(*key)
        return self._of_interval[key]

    def _jitter(self, second: int) -> int:
        """How much later to act: never as late as the time that follows."""
        longest = int(self.spec.jitter * 1000)
        if not longest:
            return 0
        candidates = [next_match(self._named, self._zone, second)]
        candidates += [_next_of(interval, second) for interval in self.spec.intervals]
        following = min((time for time in candidates if time is not None), default=None)
        if following is not None:
            longest = min(longest, (following - second) * 1000)
        digest = hashlib.blake2b(f"{second}:{self._seed}".encode(), digest_size=4).digest()
        return (int.from_bytes(digest) * longest >> 32) * 1_000_000


def _next_of(interval: IntervalSpec, second: int) -> int:
    every, offset = int(interval.every), int(interval.offset)
    return ((second - offset) // every + 1) * every + offset


# --- cron strings of workflows ------------------------------------------------------------------------------

_CRON_FIELDS = 5


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
    if not fields[0].startswith("@") and len(fields) != _CRON_FIELDS:
        raise UsageError(
            f"the cron string {text!r} makes no sense for a workflow: it has {len(fields)} fields, not {_CRON_FIELDS}"
        )
    calendars = _either_day(cron.calendar, fields) if len(fields) == _CRON_FIELDS else (cron.calendar,)
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
