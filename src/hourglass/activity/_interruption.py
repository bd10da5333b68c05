"""Interruption of a `def` activity of `hourglass.aio`: raises its cancellation as an exception in its thread.

temporalio raises its `CancelledError` in the thread of a cancelled activity, at the thread's current position, and so do we.
Python raises the exception at the thread's next bytecode (`PyThreadState_SetAsyncExc`). If the thread calls one of our
functions first, we raise it there. Must not know: attempts, workers, or owners of threads.

Invariants:

- The exception is raised at most once per attempt, and only while the activity's function executes: if it has not been
  delivered when the function ends, it is withdrawn.
- It is not raised inside `shielded`, nor while the thread is inside `logging` or the import system: an exception between
  the `acquire` of their locks and the following `try` would block the whole process, and handlers of `logging` swallow
  exceptions. In this case `request` must be repeated.
- Under a debugger, a profiler or coverage it is not raised from outside (and the call watcher pauses while one is pending):
  in Python 3.11 an exception pending for a thread in a C call makes every traced thread spin until it is delivered. The
  next heartbeat raises it instead.
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
    """Mutual exclusion of profiled threads and pending exceptions. In Python 3.11, a profiled thread would spin while an
    exception is pending for another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profiled = 0
        self._waiting = 0

    def begin_profile(self) -> bool:
        """Register that a thread is about to be profiled. Return False if it must not be profiled now."""
        with self._lock:
            if self._waiting:
                return False
            self._profiled += 1
            return True

    def end_profile(self) -> None:
        """Register that a thread is no longer profiled."""
        with self._lock:
            self._profiled -= 1

    def begin_raise(self) -> bool:
        """Register that an exception is about to become pending. Return False if that is not allowed now."""
        with self._lock:
            if self._profiled:
                return False
            self._waiting += 1
            return True

    def end_raise(self) -> None:
        """Register that an exception is no longer pending."""
        with self._lock:
            self._waiting -= 1


exclusion = _Exclusion()


class ThreadInterruption:
    """Raises `CancelledError` in the thread of one attempt."""

    def __init__(self, *, silent: bool = False) -> None:
        """Create an interruption. With `silent` (`no_thread_cancel_exception`), it never raises an exception."""
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._shields = 0
        self._requested = False
        self._raised = silent
        self._sent = False  # sent from outside, possibly not delivered yet

    def request(self) -> bool:
        """Raise the exception in the activity's thread. Return False if that is not safe right now; the caller must then
        retry soon.
        """
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

    def run(self, call: Callable[[], R]) -> R:
        """Call the activity's function, and allow an interruption until the function ends."""
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
        """Defer the exception during the block. Raise a deferred exception at the end of the block."""
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
                continue  # the exception was delivered here, and cannot be delivered twice


def _is_unsafe(frame: FrameType | None) -> bool:
    """Return whether a thread is inside code that must not be interrupted, or that would swallow the exception, such as
    `logging.Handler`.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith(_UNSAFE):
            return True
        frame = frame.f_back
    return False


def _withdraw() -> None:
    """Ensure that no exception is pending for this thread.

    Merely removing a pending exception leaves the interpreter's flag set, and traced threads then spin forever. Only a
    delivery clears the flag. So replace the exception with another, and let that one be delivered here.
    """
    try:
        _set_async_exc(threading.get_ident(), _SETTLED)
        for _ in (1, 2):  # a backward jump, where the interpreter delivers the exception at the latest
            pass
    except _Settled:
        pass


def _is_traced() -> bool:
    return threading.gettrace() is not None or threading.getprofile() is not None
