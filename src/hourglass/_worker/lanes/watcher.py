"""The call watcher: observes each call of a C function while workflow code runs on a lane, and reports nondeterministic
calls.

The watcher uses `sys.setprofile` on Python 3.11, only while the author's code runs, and `sys.monitoring` from 3.12 on.
It is for tests and development, because it slows down each call. An audit hook would miss calls: there is no event for
clocks, randomness or locks.

A report names the author's line: the innermost frame outside Hourglass, the standard library and installed packages. If
there is none, the innermost frame of an installed package is named. Calls by Hourglass itself, logging, warnings,
imports, time zone data and everything inside `with workflow.unsafe():` are ignored.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any, Literal, TypeAlias

from hourglass._evaluator.context import current_run
from hourglass._evaluator.fibers import watchers
from hourglass._worker.code_origin import STDLIB, is_library, is_ours, is_package
from hourglass._worker.lanes.forbidden_calls import ADVICE, LOCK, WATCHED_NAMES, kind_of
from hourglass.activity._interruption import exclusion
from hourglass.errors import DeterminismError

logger = logging.getLogger("hourglass.worker")

Action: TypeAlias = Literal["warn", "error"]

# Calls by these modules do not affect the workflow's result.
_EXCUSED = tuple(
    f"{base}{name}"
    for base in STDLIB
    for name in (
        "logging/",
        "importlib/",
        "zoneinfo/",
        "warnings.py",
        "linecache.py",
        "traceback.py",
        "tokenize.py",
        "encodings/",
        "pdb.py",
        "bdb.py",
    )
)


@dataclass(frozen=True)
class WatchedCall:
    """A call that workflow code must not make."""

    call: str
    kind: str
    file: str
    line: int

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line} calls {self.call}, which {self.kind}: when the workflow is replayed, the result may "
            f"differ. Instead, {ADVICE[self.kind]}; if the call is harmless, put it in `with workflow.unsafe():`"
        )


class Watcher:
    """Watches one lane's thread between `enter` and `exit`.

    With the action "warn", each line is logged once. With "error", `exit` returns an error.
    """

    def __init__(self, action: Action) -> None:
        self._action: Action = action
        self._logged: set[tuple[str, int]] = set()
        self._seen: list[WatchedCall] = []
        self._stop: Callable[[], None] | None = None
        self._judging = False

    def renewed(self) -> Watcher:
        """Return a watcher for another lane's thread. The new watcher does not repeat the log messages of this watcher."""
        watcher = Watcher(self._action)
        watcher._logged = self._logged
        return watcher

    def enter(self) -> None:
        """Start watching this thread."""
        self._seen.clear()
        self._stop = (
            _start_profile(self._called) if sys.version_info < (3, 12) else _start_monitoring(self._called)
        )

    def exit(self) -> DeterminismError | None:
        """Stop watching. With the action "error", return the calls as an error."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._action == "error" and self._seen:
            return DeterminismError("; ".join(map(str, self._seen)))
        return None

    def _called(self, function: Any, frame: FrameType | None) -> None:
        """Report a C function that is about to be called in `frame`, if workflow code must not call it."""
        if self._judging or frame is None:
            return
        kind = kind_of(function, frame)
        if kind is None:
            return
        self._judging = True
        try:
            self._judge(function, kind, frame)
        finally:
            self._judging = False

    def _judge(self, function: Any, kind: str, frame: FrameType) -> None:
        run = current_run()
        if run is None or run.unsafe:
            return
        author = _author(frame)
        if author is None or (kind is LOCK and _guards_itself(frame)):
            return
        call = WatchedCall(_name(function, frame, author), kind, author.f_code.co_filename, author.f_lineno)
        place = (call.file, call.line)
        if self._action == "error":
            if all((seen.file, seen.line) != place for seen in self._seen):
                self._seen.append(call)
        elif place not in self._logged:
            self._logged.add(place)
            logger.warning("workflow code is not deterministic: %s", call)


def _author(frame: FrameType) -> FrameType | None:
    """Return the author's frame to report; None if the call is ignored."""
    author: FrameType | None = None
    package: FrameType | None = None
    caller: FrameType | None = frame
    on_collection = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while caller is not None:
        file = caller.f_code.co_filename
        if caller.f_code in on_collection:
            return None  # a callback of the garbage collector, which happens to run here
        if is_ours(file):
            break
        if file.startswith(("<frozen importlib", "<frozen zipimport", *_EXCUSED)):
            return None  # covers the author's own log handlers, too
        if is_package(file):
            package = package or caller
        elif not is_library(file):
            author = author or caller
        caller = caller.f_back
    return author or package


_ASYNCIO = tuple(f"{base}asyncio/" for base in STDLIB)


def _guards_itself(frame: FrameType) -> bool:
    """Whether an installed package or asyncio acquires the lock, to protect its own data for a moment.

    That does not affect the run, because the run does not wait while it holds the lock.
    """
    caller: FrameType | None = frame
    while caller is not None:
        file = caller.f_code.co_filename
        if is_package(file) or file.startswith(_ASYNCIO):
            return True
        if not is_library(file):
            return False
        caller = caller.f_back
    return False


def _name(function: Any, frame: FrameType, author: FrameType) -> str:
    """Return the name of the function that the author called, which may have called the C function indirectly."""
    inner: FrameType | None = None
    caller: FrameType | None = frame
    while caller is not None and caller is not author:
        inner, caller = caller, caller.f_back
    if inner is not None:
        return f"{inner.f_globals.get('__name__', '')}.{inner.f_code.co_qualname}()"
    owner = getattr(function, "__self__", None)
    prefix = getattr(owner, "__name__", None) or type(owner).__name__
    return (
        f"{prefix}.{function.__name__}()".replace("posix.", "os.")
        .replace("builtins.", "")
        .replace("_io.", "")
    )


def _start_profile(called: Callable[[Any, FrameType | None], None]) -> Callable[[], None]:
    before, me = sys.getprofile(), threading.get_ident()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in WATCHED_NAMES:
            called(argument, frame)

    def around(function: Callable[..., Any], argument: Any) -> Any:
        # Only while the author's code runs: a profile function slows down each call, including ours.
        if not exclusion.begin_profile():
            return function(argument)
        sys.setprofile(profile)
        try:
            return function(argument)
        finally:
            sys.setprofile(before)
            exclusion.end_profile()

    def stop() -> None:
        watchers.pop(me, None)

    watchers[me] = around
    return stop


_TOOL = 4  # a tool id without a predefined name: 0, 1, 2 and 5 have one
_watching = threading.local()


def _start_monitoring(called: Callable[[Any, FrameType | None], None]) -> Callable[[], None]:
    """Start watching the calling thread. Return a function that stops watching.

    Monitoring applies to the whole interpreter, and stays on while any lane is watched. `_on_call` looks up the watcher
    of the calling thread.
    """
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
    _watching.called = called
    with _monitor_lock:
        if monitoring.get_tool(_TOOL) is None:
            monitoring.use_tool_id(_TOOL, "hourglass")
            monitoring.register_callback(_TOOL, monitoring.events.CALL, _on_call)
        _watchers.append(called)
        monitoring.set_events(_TOOL, monitoring.events.CALL)

    def stop() -> None:
        _watching.called = None
        with _monitor_lock:
            _watchers.remove(called)
            if not _watchers:
                monitoring.set_events(_TOOL, 0)

    return stop


_C_FUNCTIONS = (BuiltinFunctionType, MethodDescriptorType)
_monitor_lock = threading.Lock()
_watchers: list[Callable[[Any, FrameType | None], None]] = []


def _on_call(code: CodeType, offset: int, function: Any, first: object) -> None:
    called = getattr(_watching, "called", None)
    if called is None or not isinstance(function, _C_FUNCTIONS):
        return  # inspecting other callables may run user code
    if function.__name__ in WATCHED_NAMES:
        called(_bound(function, first), sys._getframe(1))


def _bound(function: Any, first: object) -> Any:
    """Return the bound method for a function and its first argument, which monitoring reports separately."""
    if isinstance(function, MethodDescriptorType):
        try:
            # Pass the type: without it CPython up to 3.13 crashes on some methods, such as the methods of `re`.
            return function.__get__(first, type(first))
        except TypeError:
            return function
    return function
