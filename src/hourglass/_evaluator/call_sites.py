"""Where in the author's code something happened: the line that asked for a command, raised, or returned.

Knows frames and file names, and of a run the fiber that is running. A replay that differs names these places, and so
does the re-execution check (`verify`).
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
_CALLERS = 2  # so many of the author's frames above the one that asked are worth telling


class Place(tuple[str, int]):
    """A site, with the author's frames that led there, the nearest first."""

    callers: tuple[Site, ...] = ()
    is_on_behalf: bool = False
    """Whether the library issues commands of its own for the call here: what they hold is not the author's."""


def on_behalf(site: Site) -> Place:
    """The place of an author's call for which the library issues commands of its own."""
    place = Place(site)
    place.callers = site.callers if isinstance(site, Place) else ()
    place.is_on_behalf = True
    return place


def call_site() -> Site:
    """File and line of the author's code that is running, ("", 0) where a command comes from the scheduler itself.

    Of a fiber that runs none, a library's function that was spawned, it is where it was spawned.
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
    """The first of the author's frames from here upwards, and the next ones as its callers; ("", 0) if there is none."""
    # Comes by at each command of a test, where every call of a function is watched: it makes as few as it can.
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
    """The same of frames that stand still, the innermost first."""
    sites = [(f.f_code.co_filename, f.f_lineno) for f in frames if _learn_authored(f.f_code.co_filename)]
    return _placed(sites[: _CALLERS + 1])


_is_authored: dict[str, bool] = {}


def _learn_authored(name: str) -> bool:
    """Whether a file is an author's. It is remembered, and never forgotten, for other threads look it up meanwhile; but
    only of so many files.
    """
    is_authored = not is_library(name) and not name.startswith("<frozen")
    if len(_is_authored) < 4096:
        _is_authored[name] = is_authored
    return is_authored


def raised_at(error: BaseException) -> Site:
    """Where the author's code raised an exception, or raised it again, or let a library raise it; ("", 0) if it did not."""
    sites: list[Site] = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        name = frame.f_code.co_filename
        if not is_library(name):
            if _has_raised(frame):
                sites.append((name, frame.f_lineno))
                break  # what it caught before came from further down
            sites.append((name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return _placed(sites[: -_CALLERS - 2 : -1])


def _has_raised(frame: FrameType) -> bool:
    """Whether the last that a frame which has ended did was a `raise`."""
    code = frame.f_code.co_code
    return 0 <= frame.f_lasti < len(code) and code[frame.f_lasti] == _RAISE


def returned_at(fiber: FiberTask[Any], function: object) -> Site:
    """Where a fiber's function has returned just now."""
    code = getattr(unwrap(function) if callable(function) else function, "__code__", None)
    frame, fiber.outermost = fiber.outermost, None
    if frame is not None and (code is None or frame.f_code is code):
        return frame.f_code.co_filename, frame.f_lineno  # a frame that has ended stands where it ended
    if code is None or is_library(code.co_filename):
        return fiber.spawned_at
    return code.co_filename, _only_return(code)


@lru_cache(maxsize=256)
def _only_return(code: CodeType) -> int:
    """The line of the only `return` of a function that has asked for nothing, else that of the function itself."""
    from dis import get_instructions

    steps = get_instructions(code)
    lines = {step.positions.lineno for step in steps if step.positions and step.opname.startswith("RETURN_")}
    only = lines.pop() if len(lines) == 1 else None
    return only or code.co_firstlineno


def _placed(sites: list[Site]) -> Site:
    if len(sites) < 2:
        return sites[0] if sites else NOWHERE
    place = Place(sites[0])
    place.callers = tuple(sites[1:])
    return place


@lru_cache(maxsize=1024)
def is_library(filename: str) -> bool:
    """Whether a file is ours or the standard library's, so that a report must look further up for the author's line."""
    return filename.startswith(_OUR_CODE) or (
        filename.startswith(_STANDARD_LIBRARY) and "site-packages" not in filename
    )
