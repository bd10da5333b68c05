"""A guard that rejects threads and executors in the coroutines of workflows. The error contains the name of the
called function.

The result of a thread would arrive at a different time in each execution. The run would even wait forever,
because a workflow's event loop does not have `call_soon_threadsafe`. Rejecting `run_in_executor` is not enough:
`anyio.to_thread.run_sync` and Starlette's `run_in_threadpool` start their own threads, and `Executor.submit`
may reuse a thread. All of these use `Thread.start` or create a `concurrent.futures.Future`. Both functions are
wrapped once per process, before the first coroutine of a workflow runs. Outside of coroutines of workflows, the
wrappers only call the originals.

Hourglass's own threads (e.g. the thread of a codec's event loop), threads started by logging, warnings and
imports, and all threads in `workflow.unsafe()` are allowed.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

from hourglass._evaluator.call_sites import is_library
from hourglass._evaluator.fibers import LoopFiber, current_fiber
from hourglass.errors import DeterminismError

_OURS = str(Path(__file__).resolve().parent.parent)
_TURNS = frozenset(str(Path(__file__).with_name(name)) for name in ("event_loop.py", "fibers.py"))
"""The files that run the turns of coroutines. Frames above them on the stack belong to a single turn."""
_ALLOWED = ("<frozen importlib", str(Path(logging.__file__).parent), warnings.__file__)
_SKIPPED = (str(contextlib.__file__), str(Path(asyncio.__file__).parent))
"""Files whose functions are never reported as the function that the author called."""


def install() -> None:
    """Wrap the functions that start threads, and `Future.__init__`. Only the first call in a process has an
    effect.
    """
    starts: tuple[tuple[Any, str], ...] = (
        (Thread, "start"),
        (Future, "__init__"),
        (_thread, "start_new_thread"),
        (_thread, "start_new"),
        (_thread, "start_joinable_thread"),
    )
    for owner, name in starts:
        function = getattr(owner, name, None)  # `start_joinable_thread` exists only from Python 3.13 on
        if function is not None and not hasattr(function, "_refuses_workflows"):
            setattr(owner, name, _guarded(function))


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        fiber = current_fiber()
        if type(fiber) is LoopFiber and not fiber.run.unsafe:
            _reject(sys._getframe(1), function)
        return function(*args, **kwargs)

    guarded._refuses_workflows = True  # type: ignore[attr-defined]
    return guarded


def _reject(frame: FrameType | None, function: Callable[..., Any]) -> None:
    """Raise `DeterminismError` if the call comes from a coroutine of the author, directly or through a library."""
    called, place = f"{function.__module__}.{function.__qualname__}", ""
    while frame is not None and (file := frame.f_code.co_filename) not in _TURNS:
        if file.startswith(_ALLOWED) or (not place and file.startswith(_OURS)):
            return
        if not place and not _is_installed(file):
            place = f" at {file}:{frame.f_lineno}"
        elif not place and not file.startswith(_SKIPPED):
            called = f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    raise DeterminismError(
        f"workflow code cannot use threads: {called}(){place} would run code that the history does not record. Use an "
        "activity instead"
    )


def _is_installed(file: str) -> bool:
    """Return whether a file belongs to the standard library or to an installed package."""
    return is_library(file) or "site-packages" in file or "dist-packages" in file
