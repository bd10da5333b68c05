"""Times and durations in protobuf's JSON: RFC 3339, and "1.5s". Pure. All other code uses nanoseconds."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache

SECOND = 1_000_000_000

_EPOCH = date(1970, 1, 1).toordinal()
_PLAIN = re.compile(
    r"(\d{4}-\d\d-\d\d)T([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?Z", re.ASCII
).fullmatch
_ANY = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))?", re.ASCII
).fullmatch
_DURATION = re.compile(r"(-?)(\d+)(?:\.(\d{1,9}))?s", re.ASCII).fullmatch


def moment_text(ns: int) -> str:
    """Format nanoseconds since the epoch as RFC 3339 in UTC. As in protobuf, the fraction has 0, 3, 6 or 9 digits."""
    seconds, fraction = divmod(ns, SECOND)
    if fraction % 1000:
        return f"{_to_the_second(seconds)}.{fraction:09d}Z"
    if fraction % 1_000_000:
        return f"{_to_the_second(seconds)}.{fraction // 1000:06d}Z"
    return (
        f"{_to_the_second(seconds)}.{fraction // 1_000_000:03d}Z"
        if fraction
        else f"{_to_the_second(seconds)}Z"
    )


def plain_moment(text: str) -> int | None:
    """Parse RFC 3339 in protobuf's own format, in UTC, to nanoseconds since the epoch. Return None for any other format."""
    parts = _PLAIN(text)
    if parts is None:
        return None
    day, hours, minutes, seconds, fraction = parts.groups()
    try:
        seconds_since_epoch = _day(day) + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    except ValueError:
        return None
    return seconds_since_epoch * SECOND + (int(fraction.ljust(9, "0")) if fraction else 0)


def moment(text: str) -> int | None:
    """Parse RFC 3339 in any time zone (default UTC) to nanoseconds since the epoch. Return None if the text is not a
    time.
    """
    plain = plain_moment(text)
    if plain is not None:
        return plain
    parts = _ANY(text.strip())
    if parts is None:
        return None
    day, hours, minutes, seconds, fraction, sign, zone_hours, zone_minutes = parts.groups()
    if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
        return None
    try:
        seconds_since_epoch = _day(day) + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
    except ValueError:
        return None
    if sign:
        if int(zone_hours) > 23 or int(zone_minutes) > 59:
            return None
        away = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds_since_epoch -= away if sign == "+" else -away
    return seconds_since_epoch * SECOND + int((fraction or "")[:9].ljust(9, "0"))


def duration_text(ns: int) -> str:
    """Format nanoseconds as a protobuf duration."""
    seconds, fraction = divmod(abs(ns), SECOND)
    text = f"{seconds}.{fraction:09d}".rstrip("0").rstrip(".") if fraction else str(seconds)
    return f"-{text}s" if ns < 0 else f"{text}s"


def duration(text: str) -> int | None:
    """Parse a protobuf duration to nanoseconds. Return None if the text is not a duration."""
    parts = _DURATION(text)
    if parts is None:
        return None
    sign, seconds, fraction = parts.groups()
    ns = int(seconds) * SECOND + (int(fraction.ljust(9, "0")) if fraction else 0)
    return -ns if sign else ns


@lru_cache(maxsize=1000)
def _day(text: str) -> int:
    """Return the seconds from the epoch to the start of a day. Raise `ValueError` for an invalid date."""
    return (date.fromisoformat(text).toordinal() - _EPOCH) * 86_400


@lru_cache(maxsize=64)  # many events have the same second
def _to_the_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
