"""Python stack traces as text: the frames of the author, of Hourglass, and of libraries.

Stack traces arrive with failures from any machine, so the owner of a file can only be recognized by its path. Must not know:
this machine's paths, exceptions.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+', re.MULTILINE)
_OURS = re.compile(
    r"(?:^|[/\\])hourglass[/\\](?:_\w+|activity|client|contrib|converter|errors|interceptors|limits|metrics|progress|replay|testing"
    r"|worker|workflow)[/\\.]"
)
_MOST_REPEATED = 3
_LIBRARY = re.compile(r"^<|[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\d.]*[/\\]")


def is_ours(file: str) -> bool:
    """Whether a path appears to be a file of Hourglass."""
    return _OURS.search(file) is not None


def is_authors(file: str) -> bool:
    """Whether a path appears to be the author's own code, not a file of Hourglass, an installed package or Python."""
    return _LIBRARY.search(file) is None and _OURS.search(file) is None


def without_ours(trace: str) -> str:
    """Return a stack trace without our frames. Return it unchanged if it has no other frames or is not from Python."""
    return _kept(trace, lambda file, _: not is_ours(file)) or trace.strip("\n")


def authors_frames(trace: str) -> str:
    """Return the author's frames of a stack trace, plus the innermost frame if a library raised the exception.

    If the author has no frame, return all frames except ours.
    """
    return _kept(trace, lambda file, last: is_authors(file) or (last and not is_ours(file))) or without_ours(
        trace
    )


def _kept(trace: str, is_shown: Callable[[str, bool], bool]) -> str:
    entries = list(_entries(trace))
    frames = [text for at, (file, text) in enumerate(entries) if is_shown(file, at == len(entries) - 1)]
    return "\n".join(_folded(frames))


def _folded(frames: list[str]) -> Iterator[str]:
    """Yield the frames, with repeated frames of a recursion summarized as in Python's own tracebacks."""
    for text, same in itertools.groupby(frames):
        count = len(list(same))
        yield from itertools.repeat(text, min(count, _MOST_REPEATED))
        if (more := count - _MOST_REPEATED) > 0:
            yield f"  [Previous line repeated {more} more time{'s' if more > 1 else ''}]"


def _entries(trace: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the lines of each frame in a stack trace."""
    frames = list(_FRAME.finditer(trace))
    for at, frame in enumerate(frames):
        end = frames[at + 1].start() if at + 1 < len(frames) else len(trace)
        lines = trace[frame.start() : end].splitlines()
        yield frame[1], "\n".join(line for line in lines if line.strip())
