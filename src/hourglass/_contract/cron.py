"""Cron strings in Temporal's dialect, parsed into calendars and intervals. Pure.

The cron dialect is the server's, not crontab's, so that both engines agree:

    5 fields    minute, hour, day of month, month, day of week
    6 fields    the same five, then a year
    7 fields    seconds, then the five fields, then a year
    @yearly @annually @monthly @weekly @daily @midnight @hourly
    @every 90m, @every 6h/45m (an interval, and its offset)
    CRON_TZ=Europe/Berlin or TZ=… as a prefix, a # comment as a suffix

A field is `*`, or a comma-separated list of numbers, ranges and steps. Months and weekdays may be written as names. A
time matches if *all* fields match. In particular, the day of the month and the day of the week must both match, whereas
crontab accepts either. Sunday is 0 or 7.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from hourglass._contract.schedule_specs import ScheduleCalendarSpec, ScheduleIntervalSpec, ScheduleRange
from hourglass.errors import UsageError

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
    """A field of a calendar: its valid range, and the names of its values, if any."""

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
    """A parsed cron string: a calendar or an interval, with an optional time zone."""

    calendar: ScheduleCalendarSpec | None
    interval: ScheduleIntervalSpec | None
    time_zone: str = ""


def parse_cron(text: str) -> Cron:
    """Parse a cron string. Raise `UsageError` if it is invalid."""
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
            text, f"it has {len(words)} fields; expected 5, 6 (with a year) or 7 (with seconds and a year)"
        )
    ranges = {field.name: _ranges(word, field, text) for field, word in zip(places, words, strict=True)}
    return Cron(ScheduleCalendarSpec(**ranges, comment=comment.strip()), None, zone)


def _cron_interval(expression: str, text: str) -> ScheduleIntervalSpec:
    head, _, words = expression.partition(" ")
    if head != "@every":
        raise _wrong(text, "@every must be followed by a space and a duration")
    every, _, offset = words.partition("/")
    return ScheduleIntervalSpec(_duration(every, text), _duration(offset, text) if offset else 0.0)


def _duration(words: str, text: str) -> float:
    amounts = _AMOUNT.findall(words)
    if not amounts or "".join(number + unit for number, unit in amounts) != words:
        raise _wrong(text, f"{words!r} is not a duration such as 90s, 15m, 1h30m or 2d")
    return float(sum(float(number) * _UNITS[unit] for number, unit in amounts))


def _ranges(word: str, field: Field, text: str) -> tuple[ScheduleRange, ...]:
    if word == "*" and field.name == "year":
        return ()
    return tuple(parsed for part in word.split(",") for parsed in _part(part, field, text))


def _part(part: str, field: Field, text: str) -> list[ScheduleRange]:
    span, slash, every = part.partition("/")
    step = 1
    if slash:
        if not _is_number(every) or int(every) < 1:
            raise _wrong(text, f"the step of {part!r} must be an integer of at least 1")
        step = int(every)
    highest = 7 if field.name == "day_of_week" else field.high
    first, dash, last = span.partition("-")
    if span == "*":
        start, end = field.low, highest
    else:
        start = _number(first, field, highest, text)
        end = _number(last, field, highest, text) if dash else (highest if slash else start)
    if end < start:
        raise _wrong(text, f"the {field.what} range {part!r} ends before it starts")
    if field.name == "day_of_week" and end == 7:
        return _with_sunday(start, step)
    return [ScheduleRange(start, end, step)]


def _with_sunday(start: int, step: int) -> list[ScheduleRange]:
    """Return the ranges for a range of weekdays that ends with 7. Day 7 is Sunday, and therefore also day 0."""
    if start == 7:
        return [ScheduleRange(0, 0)]
    sunday = [ScheduleRange(0, 0)] if (7 - start) % step == 0 and (step > 1 or start > 1) else []
    return [*sunday, ScheduleRange(start, 6, step)]


def _number(word: str, field: Field, highest: int, text: str) -> int:
    lower = word.lower()
    if field.names and len(lower) >= field.shortest:
        for at, name in enumerate(field.names):
            if name.startswith(lower):
                return at + field.low
    if _is_number(word) and field.low <= int(word) <= highest:
        return int(word)
    names = f", or names such as {field.names[1][:3]}" if field.names else ""
    raise _wrong(
        text, f"{word!r} is not a valid value for {field.what}: expected {field.low} to {highest}{names}"
    )


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal()


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"the cron string {text!r} is invalid: {why}")
