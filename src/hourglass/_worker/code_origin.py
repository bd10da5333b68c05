"""The origin of code, determined by its file: Hourglass, the standard library, an installed package, or the
author.

This module also removes the frames of Hourglass from tracebacks. An exception that a client raises, or that a
worker logs, then shows only the lines of the author and of the libraries between them.
`HOURGLASS_TRACEBACK=full`, or `--traceback` on the command line, leaves tracebacks unchanged.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import TracebackType
from typing import TypeVar

from hourglass.errors import InternalError

E = TypeVar("E", bound=BaseException)

VARIABLE = "HOURGLASS_TRACEBACK"
_OURS = str(Path(__file__).resolve().parent.parent) + "/"
_WRAPPERS = _OURS + "_evaluator/thread_guard.py"
"""The file that wraps functions of the standard library. Its frames count as frames of that library."""


def _paths(*names: str) -> tuple[str, ...]:
    folders = {folder for name in names if (folder := sysconfig.get_path(name))}
    return tuple({f"{path}/" for folder in folders for path in (folder, str(Path(folder).resolve()))})


STDLIB = _paths("stdlib", "platstdlib")
_PACKAGES = _paths("purelib", "platlib")


def is_ours(file: str) -> bool:
    return file.startswith(_OURS) and file != _WRAPPERS


def is_package(file: str) -> bool:
    return file.startswith(_PACKAGES)


def is_library(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package, or is not a real file."""
    return file.startswith(("<", *_PACKAGES, *STDLIB, _WRAPPERS))


def where_raised(error: BaseException) -> tuple[str, int] | None:
    """Return the file and line of the innermost frame of the author's code in a traceback, or else of the
    innermost frame.
    """
    frames: list[FrameSummary] = list(extract_tb(error.__traceback__))
    if not frames:
        return None
    own = [frame for frame in frames if not is_ours(frame.filename) and not is_library(frame.filename)]
    innermost = own[-1] if own else frames[-1]
    return innermost.filename, innermost.lineno or 0


def without_our_frames(error: E) -> E:
    """Remove the frames of Hourglass from the tracebacks of an error and its causes, except for internal
    errors. Return the error.
    """
    if isinstance(error, InternalError) or os.environ.get(VARIABLE) == "full":
        return error
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = _without_ours(link.__traceback__)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return error


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    entries: list[TracebackType] = []
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            entries.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for entry in reversed(entries):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result
