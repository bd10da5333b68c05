"""Whose code a file is: ours, the standard library's, an installed package's, or the author's. Decided by its path.

And tracebacks without our frames: what a client raises, or a worker logs, shows its reader's lines and those of the libraries
between. `HOURGLASS_TRACEBACK=full`, or `--traceback` at the command line, leaves them whole.
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
    found = {each for name in names if (each := sysconfig.get_path(name))}
    return tuple({f"{path}/" for each in found for path in (each, str(Path(each).resolve()))})


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
    """File and line of the author's code that an exception came out of: the innermost, if there is any."""
    frames: list[FrameSummary] = list(extract_tb(error.__traceback__))
    if not frames:
        return None
    own = [each for each in frames if not is_ours(each.filename) and not is_library(each.filename)]
    best = own[-1] if own else frames[-1]
    return best.filename, best.lineno or 0


def without_our_frames(error: E) -> E:
    """The same error, and its causes, whose tracebacks do not lead through our files; whole where the fault is ours."""
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
    kept: list[TracebackType] = []
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    made: TracebackType | None = None
    for each in reversed(kept):
        made = TracebackType(made, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return made
