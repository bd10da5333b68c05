"""Durations and moments as people read them: short, three digits, at most two units."""

from __future__ import annotations

from datetime import UTC, datetime

US, MS, S = 1_000, 1_000_000, 1_000_000_000
MIN, H, D = 60 * S, 3_600 * S, 86_400 * S
YEAR = 365 * D

_PAIRS = ((D, "d", H, "h"), (H, "h", MIN, "min"), (MIN, "min", S, "s"))


def duration(ns: int) -> str:
    """A duration: `49 ms`, `1.27 s`, `3 h 12 min`, `30 d`."""
    if ns < 0:
        return f"−{duration(-ns)}"
    if ns >= 1000 * D:
        return f"{_digits(ns / YEAR)} y"
    if ns >= 100 * D:
        return f"{ns // D} d"
    for large, large_name, small, small_name in _PAIRS:
        if round(ns / small) * small >= large:
            whole, rest = divmod(round(ns / small) * small, large)
            return f"{whole} {large_name}" + (f" {rest // small} {small_name}" if rest else "")
    if ns == 0:
        return "0"
    for unit, name in ((S, "s"), (MS, "ms"), (US, "µs")):
        if ns >= 0.9995 * unit:
            return f"{_digits(ns / unit)} {name}"
    return f"{ns} ns"


def moment(ns: int) -> str:
    """A moment in UTC, to the second."""
    return f"{_time(ns):%Y-%m-%d %H:%M:%S} UTC"


def precise(ns: int) -> str:
    """A moment in UTC as RFC 3339, to the nanosecond."""
    return f"{_time(ns):%Y-%m-%dT%H:%M:%S}.{ns % S:09d}Z"


def share(part: int, whole: int) -> str:
    """A part of a whole in percent."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def _digits(value: float) -> str:
    text = f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _time(ns: int) -> datetime:
    # Years that Python cannot name are somebody's mistake, and no reason to fail.
    seconds = min(max(ns // S, 0), 253_402_300_799)
    return datetime.fromtimestamp(seconds, UTC)
