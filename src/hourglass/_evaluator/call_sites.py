"""Call sites: the author's line that issued a command, raised an exception, or returned.

This module knows frames and file names, and nothing about a run except the current fiber. Nondeterminism
reports of replays and of the re-execution check (`verify`) name these lines.
"""

from __future__ import annotations

import sys
import sysconfig
from dis import opmap
from functools import lru_cache
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from hourglass._evaluator.fibers import FiberTask, current_fiber

_OUR_CODE = str(Path(__file__).resolve().parent.parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")

Site = tuple[str, int]
NOWHERE: Site = ("", 0)
_RAISE = opmap["RAISE_VARARGS"]
_CALLERS = 2  # the number of the author's frames reported above the call site


class CallSite(tuple[str, int]):
    """A call site together with the author's calling frames, the nearest first."""

    callers: tuple[Site, ...] = ()
    is_on_behalf: bool = False
    """Whether the library issues its own commands for this call, with contents that the author did not write."""


def on_behalf(site: Site) -> CallSite:
    """Return a copy of an author's call site that is marked as one for which the library issues its own commands."""
    place = CallSite(site)
    place.callers = site.callers if isinstance(site, CallSite) else ()
    place.is_on_behalf = True
    return place


def call_site() -> Site:
    """Return the file and line of the author's code that is running, or ("", 0) if the scheduler itself issues
    the command.

    For a fiber that runs none of the author's code (a spawned library function), return the line that spawned
    the fiber.
    """
    fiber = current_fiber()
    if fiber is None:
        return NOWHERE
    frame = sys._getframe(1)
    site = place_of(frame)
    if site[0] and fiber.run.settings.trace and fiber.outermost is None:
        fiber.outermost = _outermost(frame)
    return site if site[0] else fiber.spawned_at


def _outermost(frame: FrameType | None) -> FrameType | None:
    outermost = None
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            outermost = frame
        frame = frame.f_back
    return outermost


def place_of(frame: FrameType | None) -> Site:
    """Return the site of the author's innermost frame, starting at `frame`, with the next frames as its
    callers. Return ("", 0) if no frame is the author's.
    """
    # Called for each command of a test, where every function call is traced, so this function makes as few
    # calls as possible.
    sites: list[Site] = []
    remaining = _CALLERS + 1
    while frame is not None and remaining:
        name = frame.f_code.co_filename
        if _is_authored[name] if name in _is_authored else _learn_authored(name):
            sites += ((name, frame.f_lineno),)
            remaining -= 1
        frame = frame.f_back
    return _placed(sites) if remaining < _CALLERS else (sites[0] if sites else NOWHERE)


def place_in(frames: list[FrameType]) -> Site:
    """Return the author's site in the frames of a suspended fiber. The frames begin with the innermost."""
    sites = [(f.f_code.co_filename, f.f_lineno) for f in frames if _learn_authored(f.f_code.co_filename)]
    return _placed(sites[: _CALLERS + 1])


_is_authored: dict[str, bool] = {}


def _learn_authored(name: str) -> bool:
    """Return whether a file is the author's. Results are cached for a limited number of files. Entries are
    never removed, because other threads read the cache concurrently.
    """
    is_authored = not is_library(name) and not name.startswith("<frozen")
    if len(_is_authored) < 4096:
        _is_authored[name] = is_authored
    return is_authored


def raised_at(error: BaseException) -> Site:
    """Return the line at which the author's code raised or re-raised an exception, or called the library that
    raised it. Return ("", 0) if there is no such line.
    """
    sites: list[Site] = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        name = frame.f_code.co_filename
        if not is_library(name):
            if _has_raised(frame):
                sites.append((name, frame.f_lineno))
                break  # it caught an exception that was raised further down
            sites.append((name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _placed(sites[: -_CALLERS - 2 : -1])


def _has_raised(frame: FrameType) -> bool:
    """Return whether the last instruction of an ended frame was a `raise`."""
    code = frame.f_code.co_code
    return 0 <= frame.f_lasti < len(code) and code[frame.f_lasti] == _RAISE


def returned_at(fiber: FiberTask[Any], function: object) -> Site:
    """Return the line at which a fiber's function has just returned."""
    code = getattr(unwrap(function) if callable(function) else function, "__code__", None)
    frame, fiber.outermost = fiber.outermost, None
    if frame is not None and (code is None or frame.f_code is code):
        return frame.f_code.co_filename, frame.f_lineno  # an ended frame keeps the line where it ended
    if code is None or is_library(code.co_filename):
        return fiber.spawned_at
    return code.co_filename, _only_return(code)


@lru_cache(maxsize=256)
def _only_return(code: CodeType) -> int:
    """Return the line of a function's `return`, if there is exactly one, or else the function's first line.
    Used for functions that issued no command.
    """
    from dis import get_instructions

    steps = get_instructions(code)
    lines = {step.positions.lineno for step in steps if step.positions and step.opname.startswith("RETURN_")}
    only = lines.pop() if len(lines) == 1 else None
    return only or code.co_firstlineno


def _placed(sites: list[Site]) -> Site:
    if len(sites) < 2:
        return sites[0] if sites else NOWHERE
    place = CallSite(sites[0])
    place.callers = tuple(sites[1:])
    return place


@lru_cache(maxsize=1024)
def is_library(filename: str) -> bool:
    """Return whether a file is part of Hourglass or the standard library. A report then looks for the author's
    line further up the stack.
    """
    return filename.startswith(_OUR_CODE) or (
        filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
    )
