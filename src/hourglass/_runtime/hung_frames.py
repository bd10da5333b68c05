"""Frames of code that hung, as text for people: the author's ones. From Python's own frames, or from what `faulthandler` wrote.

Loaded by the guardian, which stays small: nothing but the standard library and whose file is whose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import FrameSummary, StackSummary

from hourglass._runtime.places import is_library, is_ours

MOST_FRAMES = 50

_HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)|Stack \(most recent call first\)")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


@dataclass(frozen=True)
class HungStack:
    """A stack as text, the newest frame last, and the place of the newest one, such as `orders.py:12 in wait`."""

    text: str = ""
    place: str = "an unknown place"


@dataclass(frozen=True)
class Dumped:
    """The stack of one thread, the newest frame first. `ident` is Python's number of it, None where only one was asked for."""

    ident: int | None
    frames: tuple[FrameSummary, ...]


def told(frames: Sequence[FrameSummary]) -> HungStack:
    """The author's frames of a stack that is given newest first; where there are none, the innermost one whosever it is."""
    if not frames:
        return HungStack()
    own = [each for each in frames if not is_ours(each.filename) and not is_library(each.filename)]
    shown = (own or list(frames[:1]))[:MOST_FRAMES]
    shown.reverse()
    last = shown[-1]
    return HungStack(
        "".join(StackSummary.from_list(shown).format()), f"{last.filename}:{last.lineno} in {last.name}"
    )


def parse_dump(text: str) -> list[Dumped]:
    """The stacks in what `faulthandler` wrote; whatever else stands there is passed over."""
    found: list[tuple[int | None, list[FrameSummary]]] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            found.append((int(header[1], 16) if header[1] else None, []))
        elif found and (frame := _FRAME.fullmatch(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1][1].append(FrameSummary(_unescaped(frame[1]), number, _unescaped(frame[3])))
    return [Dumped(ident, tuple(frames)) for ident, frames in found]


def _unescaped(text: str) -> str:
    # It writes ASCII, and has no room for more than 500 characters of a name.
    return _ESCAPE.sub(lambda each: chr(int(each[1] or each[2] or each[3], 16)), text)
