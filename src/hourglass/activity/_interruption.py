"""How the cancellation of a `def` activity reaches its thread as an exception, for activities of `hourglass.aio`.

temporalio raises its `CancelledError` in the thread that runs a cancelled activity, wherever its code is. So does this: Python
raises the exception at the thread's next bytecode (`PyThreadState_SetAsyncExc`), or here, where the thread calls one of our
functions first. Must not know attempts, workers and threads' owners.

Invariants:

- The exception is raised at most once for an attempt, and only while the activity's function executes: what has not arrived
  when the function ends is taken back.
- Nothing is raised inside `shielded`, nor while the thread is inside `logging` or the import system: an exception between the
  `acquire` of their locks and the `try` behind it would stop the whole process, and handlers of `logging` swallow exceptions.
  `request` is repeated then.
- Under a debugger, a profiler or coverage nothing is raised from outside (and the call watcher lets calls pass while it is): in
  Python 3.11 an exception that waits for a thread in a C call makes every traced thread spin until it is delivered. The next
  heartbeat raises it.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os.path import dirname
from types import FrameType
from typing import TypeVar

from hourglass.errors import CancelledError

R = TypeVar("R")


class _Settled(BaseException):
    pass


_UNSAFE = ("<frozen importlib", dirname(logging.__file__), dirname(importlib.__file__))

_set_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_CANCELLED_ERROR = id(CancelledError)  # the address of the class, which lives as long as the process
_SETTLED = id(_Settled)


class _Exclusion:
    """Keeps a thread from being profiled while an exception waits for another: in Python 3.11 the profiled one would spin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profiled = 0
        self._waiting = 0

    def begin_profile(self) -> bool:
        """A thread is about to be profiled. False if it must not be now."""
        with self._lock:
            if self._waiting:
                return False
            self._profiled += 1
            return True

    def end_profile(self) -> None:
        """It is not profiled any more."""
        with self._lock:
            self._profiled -= 1

    def begin_raise(self) -> bool:
        """An exception is about to wait for its thread. False if it must not now."""
        with self._lock:
            if self._profiled:
                return False
            self._waiting += 1
            return True

    def end_raise(self) -> None:
        """It does not wait any more."""
        with self._lock:
            self._waiting -= 1


exclusion = _Exclusion()


class ThreadInterruption:
    """Raises `CancelledError` in the thread of one attempt."""

    def __init__(self, *, silent: bool = False) -> None:
        """With `silent` nothing is ever raised (`no_thread_cancel_exception`)."""
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._shields = 0
        self._requested = False
        self._raised = silent
        self._sent = False  # from outside: it may still be on its way

    # --- in any thread -----------------------------------------------------------------------------------------------

    def request(self) -> bool:
        """Raise the exception in the activity's thread. False if that is not safe right now: ask again soon."""
        with self._lock:
            self._requested = True
            if self._raised or self._shields or self._thread is None or _is_traced():
                return True
            if self._thread != threading.get_ident() and _is_unsafe(sys._current_frames().get(self._thread)):
                return False
            if not exclusion.begin_raise():
                return False
            self._raised = self._sent = True
            _set_async_exc(self._thread, _CANCELLED_ERROR)
            return True

    # --- in the activity's own thread --------------------------------------------------------------------------------

    def run(self, call: Callable[[], R]) -> R:
        """Call the activity's function, which can be interrupted until it ends."""
        try:
            with self._lock:
                self._thread = threading.get_ident()
            self.check()
            return call()
        finally:
            self._leave()

    def check(self) -> None:
        """Raise the exception here if it was requested and has not been raised yet."""
        with self._lock:
            if not self._requested or self._raised or self._shields:
                return
            self._raised = True
        raise CancelledError("Cancelled")

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Within the block nothing is raised; what was requested meanwhile is raised at its end."""
        with self._lock:
            self._shields += 1
        try:
            yield
        finally:
            with self._lock:
                self._shields -= 1
            self.check()

    def _leave(self) -> None:
        while True:
            try:
                with self._lock:
                    self._thread = None
                if self._sent:
                    _withdraw()
                    self._sent = False
                    exclusion.end_raise()
                return
            except CancelledError:
                continue  # it arrived here, and cannot do so twice


def _is_unsafe(frame: FrameType | None) -> bool:
    """Whether a thread is inside code that must not be interrupted, or would swallow the exception (`logging.Handler`)."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_UNSAFE):
            return True
        frame = frame.f_back
    return False


def _withdraw() -> None:
    """Make sure that no exception waits for this thread.

    One that is only taken away leaves the alarm of the interpreter raised, and traced threads spin for ever. Delivering one
    silences it: so another one takes its place, and is delivered here.
    """
    try:
        _set_async_exc(threading.get_ident(), _SETTLED)
        for _ in (1, 2):  # a backward jump: there at the latest the interpreter delivers it
            pass
    except _Settled:
        pass


def _is_traced() -> bool:
    return threading.gettrace() is not None or threading.getprofile() is not None
