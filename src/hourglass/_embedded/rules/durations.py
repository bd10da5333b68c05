"""Durations as list filters write them: Go's form with days (`1d2h30m`, `1.5s`), `hh:mm:ss`, or nanoseconds.

Must not know: filters. The forms are those that the Temporal server takes for ExecutionDuration.
"""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60 * 1_000_000_000,
    "h": 3600 * 1_000_000_000,
    "d": 86_400 * 1_000_000_000,
}
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h|d)", re.ASCII)
_PARTS = re.compile(rf"([+-]?)((?:{_PART.pattern})+)", re.ASCII)
_CLOCK = re.compile(r"(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,20}", re.ASCII)


def parse_duration(text: str) -> int | None:
    """A duration in nanoseconds; None for what is none, or longer than 64 bits hold."""
    value = _parsed(text) if len(text) < 100 else None
    return value if value is not None and abs(value) < 2**63 else None


def _parsed(text: str) -> int | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (Fraction(part) for part in clock.groups())
        return int((hours * 3600 + minutes * 60 + seconds) * _UNITS["s"])
    if parts := _PARTS.fullmatch(text):
        total = sum(Fraction(amount.rstrip(".")) * _UNITS[unit] for amount, unit in _PART.findall(parts[2]))
        return -int(total) if parts[1] == "-" else int(total)
    return None
