"""Whose code a file is: ours, the standard library's, an installed package's, or the author's. Decided by its
path.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from traceback import FrameSummary, extract_tb

_OURS = str(Path(__file__).resolve().parent.parent) + "/"


def _paths(*names: str) -> tuple[str, ...]:
    found = {each for name in names if (each := sysconfig.get_path(name))}
    return tuple({f"{path}/" for each in found for path in (each, str(Path(each).resolve()))})


STDLIB = _paths("stdlib", "platstdlib")
_PACKAGES = _paths("purelib", "platlib")


def is_ours(file: str) -> bool:
    """Whether a file belongs to Hourglass."""
    return file.startswith(_OURS)


def is_package(file: str) -> bool:
    """Whether a file belongs to an installed package."""
    return file.startswith(_PACKAGES)


def is_library(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package, or is no file at all."""
    return file.startswith(("<", *_PACKAGES, *STDLIB))


def where_raised(error: BaseException) -> tuple[str, int] | None:
    """File and line of the author's code that an exception came out of: the innermost, if there is any."""
    frames: list[FrameSummary] = list(extract_tb(error.__traceback__))
    if not frames:
        return None
    own = [each for each in frames if not is_ours(each.filename) and not is_library(each.filename)]
    best = own[-1] if own else frames[-1]
    return best.filename, best.lineno or 0
