"""Text in pictures: durations and times in readable form, and the width of text, computed without a browser.

Text from a history is cleaned before it is shown (`clean`). File names are shown relative to the working
directory (`near`).

Durations are short: three digits and at most two units. Widths are computed for Arial and for monospaced fonts. The
browser's substitute font may be up to a seventh wider, so the computed widths are generous, and text truncated to them fits.
"""

from __future__ import annotations

import os.path
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from hourglass._history.times import moment_text

US, MS, S = 1_000, 1_000_000, 1_000_000_000
MIN, H, D = 60 * S, 3_600 * S, 86_400 * S
YEAR = 365 * D

_PAIRS = ((D, "d", H, "h"), (H, "h", MIN, "min"), (MIN, "min", S, "s"))


def duration(ns: int) -> str:
    """Format a duration: `49 ms`, `1.27 s`, `3 h 12 min`, `30 d`."""
    if ns < 0:
        return f"−{duration(-ns)}"
    if ns >= 1000 * D:
        return f"{_digits(ns / YEAR)} y"
    if ns >= 100 * D:
        return f"{ns // D} d"
    for large, large_name, small, small_name in _PAIRS:
        if round(ns / small) * small >= large:
            large_count, remainder = divmod(round(ns / small) * small, large)
            return f"{large_count} {large_name}" + (
                f" {remainder // small} {small_name}" if remainder else ""
            )
    if ns == 0:
        return "0"
    for unit, name in ((S, "s"), (MS, "ms"), (US, "µs")):
        if ns >= 0.9995 * unit:
            return f"{_digits(ns / unit)} {name}"
    return f"{ns} ns"


def moment(ns: int) -> str:
    """Format a time in UTC, to the second."""
    # A year that Python cannot represent is an error in the history, but no reason to fail.
    seconds = min(max(ns // S, 0), _LAST)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def precise(ns: int) -> str:
    """Format a time in UTC as RFC 3339, to the nanosecond."""
    return moment_text(min(max(ns, 0), _LAST * S))


def nanoseconds(moment: datetime | None) -> int | None:
    """Return a time as nanoseconds since the epoch."""
    if moment is None:
        return None
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return ((past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds) * 1_000


def share(part: int, total: int) -> str:
    """Format a fraction in percent."""
    return f"{100 * part / total:.0f} %" if total > 0 else "0 %"


def _digits(value: float) -> str:
    text = f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_LAST = 253_402_300_799


def clean(value: str) -> str:
    """Return the text on one line, without control characters. Text from a history must not control a terminal."""
    return "".join(character if character.isprintable() else " " for character in value).strip()


# ASCII controls except line feed and tab; DEL and C1 controls; bidirectional and invisible characters, except
# the two joiners of letters and emoji; tags; line separators; lone surrogates, which no stream can encode.
HOSTILE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def harmless(text: str) -> str:
    """Return untrusted text with its line breaks. Characters that could control a terminal or hide text are escaped."""
    return HOSTILE.sub(_escape, text)


MONO = 0.605

Measure: TypeAlias = Callable[[str], float]

# In thousandths of an em, for the characters from space to tilde.
_ARIAL = (
    *(278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278),
    *(556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556),
    *(1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778),
    *(667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556),
    *(333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556),
    *(556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584),
)
_GENEROUS = 1.15


def sans(text: str, size: float) -> float:
    """Return the width of text in a proportional font."""
    return sum(_sans(character) for character in text) * size


def mono(text: str, size: float) -> float:
    """Return the width of text in a monospaced font."""
    return sum(MONO if " " <= character <= "~" else _other(character) for character in text) * size


def cells(text: str) -> int:
    """Return the width of text in a terminal."""
    return sum(_cells(character) for character in text)


def fit(text: str, width: float, measure: Measure, end: str = "…") -> str:
    """Return the text. If it does not fit, return as much of its beginning as fits, with an ellipsis."""
    if measure(text) <= width:
        return text
    beginning = ""
    for character in text:
        if measure(beginning + character + end) > width:
            break
        beginning += character
    return beginning.rstrip() + end if beginning or measure(end) <= width else ""


def _sans(char: str) -> float:
    if " " <= char <= "~":
        return _ARIAL[ord(char) - 32] / 1000 * _GENEROUS
    return _other(char) if char not in "·–’“”…" else _GENEROUS * (1.0 if char == "…" else 0.56)


def _other(char: str) -> float:
    cell = _cells(char)
    return 0.0 if not cell else 1.25 if cell == 2 else 0.9


def _cells(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def near(file: str) -> str:
    """Return a file name relative to the working directory if the file is inside, or else unchanged."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # outside, or the working directory no longer exists
        return file


def near_place(place: str) -> str:
    """Return a place (file and line) with the file relative to the working directory."""
    file, colon, line = place.rpartition(":")
    return f"{near(os.path.normpath(file))}{colon}{line}" if file else place
