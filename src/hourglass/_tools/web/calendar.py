"""The days of a year on which a schedule acts, and the number of actions per day. Pure.

Must not know: HTML. The rules of the embedded engine compute the times, as on a server; jitter is ignored.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from hourglass._embedded.schedules.times import Timetable
from hourglass.client import ScheduleSpec

DAYS = 371
"""53 weeks, which is a full year from any day of the week."""

MAX_TIMES = 5_000
"""The maximum number of computed times. For a schedule with more, the later days are drawn like the busiest day."""


@dataclass(frozen=True)
class Day:
    """A day in UTC: its column and row in the picture, and the number of times that the schedule acts."""

    date: date
    week: int
    weekday: int
    count: int

    @property
    def level(self) -> int:
        """The intensity of the day's color, from 0 to 4."""
        return bisect_left((0, 1, 4, 24), self.count)


def year_of(spec: ScheduleSpec, now: datetime) -> tuple[Day, ...]:
    """Return the days of a year, beginning with the current week."""
    first = now.astimezone(UTC).date() - timedelta(days=now.astimezone(UTC).weekday())
    end = datetime.combine(first + timedelta(days=DAYS), datetime.min.time(), UTC)
    counts: dict[date, int] = {}
    table = Timetable(spec)
    after = int(now.timestamp() * 1e9)
    reached = end
    max_times = max(100, MAX_TIMES // (1 + table.size // 10))
    for number in range(max_times):
        moment = table.next(after)
        if moment is None or moment.nominal_ns >= end.timestamp() * 1e9:
            break
        after = moment.nominal_ns
        at = datetime.fromtimestamp(after // 1_000_000_000, UTC)
        counts[at.date()] = counts.get(at.date(), 0) + 1
        if number == max_times - 1:
            reached = at
    busiest = max(counts.values(), default=0)
    days = (first + timedelta(days=number) for number in range(DAYS))
    return tuple(
        Day(day, number // 7, number % 7, busiest if day > reached.date() else counts.get(day, 0))
        for number, day in enumerate(days)
    )
