"""Stacks as text: the author's frames of a thread of this process, or from a dump of another process."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import FrameSummary, StackSummary, walk_stack
from types import FrameType

from hourglass._worker.code_origin import is_library, is_ours

_MOST_FRAMES = 50
_HEADER = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)|Stack \(most recent call first\)")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


@dataclass(frozen=True)
class HungStack:
    """A stack as text, the innermost frame last, and the place of that frame, such as `orders.py:12 in wait`."""

    text: str = ""
    place: str = "an unknown place"


@dataclass(frozen=True)
class DumpedStack:
    """The stack of one thread, the innermost frame first. `ident` is Python's id of the thread, None if not
    recorded."""

    ident: int | None
    frames: tuple[FrameSummary, ...]


def frame_of(thread_id: int | None) -> FrameType | None:
    """Return the frame that a thread is executing; None if the thread does not exist."""
    return sys._current_frames().get(thread_id) if thread_id is not None else None


def take_stack(frame: FrameType | None) -> HungStack:
    """Return the author's frames of a stack; if there are none, the innermost frame."""
    if frame is None:
        return HungStack()
    # Positions first, source lines later: the thread may continue while its stack is read.
    return author_stack(StackSummary.extract(walk_stack(frame), limit=_MOST_FRAMES * 4, lookup_lines=False))


def author_stack(frames: Sequence[FrameSummary]) -> HungStack:
    """Return the author's frames of a stack; if there are none, the innermost frame. `frames` begins with the innermost
    frame.
    """
    if not frames:
        return HungStack()
    own = [frame for frame in frames if not is_ours(frame.filename) and not is_library(frame.filename)]
    shown = (own or list(frames[:1]))[:_MOST_FRAMES]
    shown.reverse()
    last = shown[-1]
    text = "".join(StackSummary.from_list(shown).format())
    return HungStack(text, f"{last.filename}:{last.lineno} in {last.name}")


def parse_dump(text: str) -> list[DumpedStack]:
    """Return the stacks in output of `faulthandler`. Other text is ignored."""
    stacks: list[tuple[int | None, list[FrameSummary]]] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            stacks.append((int(header[1], 16) if header[1] else None, []))
        elif stacks and (frame := _FRAME.fullmatch(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            stacks[-1][1].append(FrameSummary(_unescaped(frame[1]), number, _unescaped(frame[3])))
    return [DumpedStack(ident, tuple(frames)) for ident, frames in stacks]


def _unescaped(text: str) -> str:
    # `faulthandler` writes ASCII, and at most 500 characters of a name.
    return _ESCAPE.sub(lambda match: chr(int(match[1] or match[2] or match[3], 16)), text)
