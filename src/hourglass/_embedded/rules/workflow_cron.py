"""When a workflow with a cron schedule runs next. Pure: no clock, the zone database aside.

The dialect is that of a Temporal server for workflows, which is not the one of its schedules: five fields; where both a
day of the month and a day of the week are given either is enough, as in crontab; `@every` counts from the run before,
in whole seconds, and `?` is `*`. Times in between that have passed when a run ends are left out.
"""

from __future__ import annotations

import math
from functools import lru_cache

import msgspec

from hourglass._contract.schedules import CalendarSpec, ScheduleSpec, parse_cron
from hourglass._embedded.clock import SECOND
from hourglass._embedded.rules.schedule_times import Timetable
from hourglass.errors import UsageError

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
    return Timetable(ScheduleSpec(calendars=calendars, time_zone=cron.time_zone))


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
