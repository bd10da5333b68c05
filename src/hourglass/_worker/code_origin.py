"""The origin of code by its file: ours, the standard library's, an installed package's, or the author's.

Also tracebacks without our frames: an exception that a client raises, or a worker logs, shows the author's lines and
those of the libraries between them. `HOURGLASS_TRACEBACK=full`, or `--traceback` at the command line, leaves
tracebacks unchanged.
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
"""Wraps functions of the standard library: its frames count as the library's."""


def _paths(*names: str) -> tuple[str, ...]:
    folders = {folder for name in names if (folder := sysconfig.get_path(name))}
    return tuple({f"{path}/" for folder in folders for path in (folder, str(Path(folder).resolve()))})


STDLIB = _paths("stdlib", "platstdlib")
_PACKAGES = _paths("purelib", "platlib")


def is_ours(file: str) -> bool:
    """Whether a file belongs to Hourglass."""
    return file.startswith(_OURS) and file != _WRAPPERS


def is_package(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return file.startswith(_PACKAGES)


def is_library(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package, or is no file at all."""
    return file.startswith(("<", *_PACKAGES, *STDLIB, _WRAPPERS))


def where_raised(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the innermost frame of the author's code in a traceback; of any code if there is none."""
    frames: list[FrameSummary] = list(extract_tb(error.__traceback__))
    if not frames:
        return None
    own = [frame for frame in frames if not is_ours(frame.filename) and not is_library(frame.filename)]
    innermost = own[-1] if own else frames[-1]
    return innermost.filename, innermost.lineno or 0


def without_our_frames(error: E) -> E:
    """Remove our frames from the tracebacks of an error and its causes, unless the fault is ours. Return the error."""
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
