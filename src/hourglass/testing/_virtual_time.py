"""Virtual times and durations between what a test writes (`datetime`, `timedelta`, days=3) and nanoseconds. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hourglass._embedded.clock import SECOND
from hourglass._engine.options import Duration, seconds
from hourglass.errors import UsageError


def span(
    duration: Duration | None, weeks: float, days: float, hours: float, minutes: float, seconds_: float
) -> int:
    """A duration, given as one or in parts, as nanoseconds."""
    parts = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds_)
    if duration is not None and parts:
        raise UsageError("give a duration, or its parts by name (days=3, hours=12), not both")
    if duration is None and not parts:
        raise UsageError("give a duration: a timedelta, seconds, or its parts by name (days=3, hours=12)")
    chosen = parts if duration is None else duration
    if isinstance(chosen, timedelta):
        seconds(chosen)
        return (chosen // timedelta(microseconds=1)) * 1000
    return round(seconds(chosen) * SECOND)


def as_datetime(ns: int) -> datetime:
    """A virtual time as a `datetime` in UTC, to the microsecond."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000)


def as_ns(time: datetime) -> int:
    """A `datetime` as nanoseconds since the epoch; it must know its time zone."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise UsageError("a time must be a datetime with a time zone")
    return ((time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)) * 1000
