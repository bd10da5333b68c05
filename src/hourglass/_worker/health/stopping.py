"""Stopping a thread whose code does not return, and counting the threads that cannot be stopped.

`PyThreadState_SetAsyncExc` raises an exception in another thread at the thread's next bytecode. That ends a loop within
a millisecond, but does not interrupt a C call, and code that catches all exceptions swallows this one, too. The
exception is therefore raised repeatedly, at growing intervals, until the thread ends (`Stopper`). A thread that does
not end is *stuck*: it is counted, reported when there are too many, and forgotten if it ends later.

Two dangers, and how they are avoided:

- An exception between a lock's `acquire` and the following `try` leaves the lock held forever. A thread is therefore
  not interrupted while its innermost frame belongs to the standard library (`may_interrupt`).
- While an exception waits for a thread that executes C code, Python 3.11 keeps the eval breaker of the whole
  interpreter set, and a thread that is profiled or traced spins at its next call until the exception is delivered. An
  exception therefore never stays pending: it is withdrawn if it has not been delivered after some milliseconds
  (`raise_briefly`).

Runs on the control loop, and only after a lane was abandoned. Must not know: workflows, queues of lanes, restarts.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import sleep
from types import FrameType
from typing import Any, Protocol

from hourglass._worker.code_origin import STDLIB

logger = logging.getLogger("hourglass.worker")

STUCK_AFTER = 8  # attempts, which take about a quarter of a second
_FIRST_DELAY, _LAST_DELAY = 0.001, 5.0
_UNWINDING_DELAY = 0.25  # seconds that a thread may take to unwind one of its runs
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.01
# after these attempts library code is also interrupted, unless it may hold a lock that all threads share
_LIBRARY_ATTEMPTS = 12

# All threads share the locks of these modules. A lock that is held forever would stop the process.
_NEVER = tuple(
    f"{base}{name}" for base in STDLIB for name in ("logging/", "threading.py", "queue.py", "importlib/")
)

_set_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_clear_async_exc = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)


class LaneStopped(BaseException):
    """Raised in the thread of an abandoned lane, to end the thread. This is not an error, and must not be caught."""


class Stoppable(Protocol):
    """A thread that was abandoned."""

    name: str

    @property
    def ended(self) -> bool:
        """Whether the thread has left our code and the author's."""
        ...

    @property
    def progress(self) -> int:
        """A number that changes while the thread cleans up."""
        ...

    def interrupt(self, attempt: int) -> None:
        """Raise `LaneStopped` in the thread, if that is safe now and can help."""
        ...

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end. Return whether it has ended. Must not be called on the control loop."""
        ...


class _Settled(BaseException):
    pass


def raise_briefly(thread_id: int, seconds: float) -> None:
    """Raise `LaneStopped` in a thread. Withdraw the exception if it is not delivered within `seconds`.

    The thread must not end meanwhile, because another thread could then get the same id.
    """
    # Use one frame, and call only C functions: while the eval breaker is set, a traced thread does not complete its
    # next call, and this thread may be traced. Only a delivered exception resets the eval breaker, so this thread
    # raises one for itself at the end.
    try:
        _set_async_exc(thread_id, LaneStopped)
        sleep(seconds)
        _clear_async_exc(thread_id, None)
        _set_async_exc(get_ident(), _Settled)
        for _ in (1, 2):  # the interpreter delivers the exception at a backward jump at the latest
            pass
    except _Settled:
        pass


def cpu_time(thread_id: int) -> float | None:
    """Return the CPU time of a running thread in seconds; None if the system does not report it."""
    clock_of: Any = getattr(time, "pthread_getcpuclockid", None)
    return float(time.clock_gettime(clock_of(thread_id))) if clock_of is not None else None


def may_interrupt(frame: FrameType | None, attempt: int) -> bool:
    """Whether an exception may be raised in a thread that executes this frame."""
    if frame is None:
        return True
    file = frame.f_code.co_filename
    if file.startswith(("<frozen importlib", *_NEVER)):
        return False
    return attempt > _LIBRARY_ATTEMPTS or not file.startswith(STDLIB)


def wait_of(attempt: int) -> float:
    """Return the time in seconds that an attempt waits for the delivery. The time grows, because many threads may
    compete for the interpreter.
    """
    return min(_FIRST_WAIT * (1 << min(attempt - 1, 10)), _LONGEST_WAIT)


@dataclass(eq=False)
class _Abandoned:
    lane: Stoppable
    # Starts at 0: a thread that is already unwinding has a larger number, so its progress is seen at the first attempt.
    progress: int = 0
    attempts: int = 0
    delay: float = _FIRST_DELAY

    @property
    def stuck(self) -> bool:
        return self.attempts > STUCK_AFTER


class Stopper:
    """Interrupts abandoned threads until they end, and counts the stuck threads."""

    def __init__(self, max_stuck: int, on_too_many: Callable[[], object] | None) -> None:
        self._max_stuck = max_stuck
        self._on_too_many = on_too_many
        self._abandoned: list[_Abandoned] = []
        self._reported = False

    @property
    def too_many(self) -> bool:
        """Whether more threads are stuck than allowed."""
        return sum(thread.stuck for thread in self._abandoned) > self._max_stuck

    def stuck(self, name: str | None = None) -> int:
        """Return the number of stuck threads, of the lane with this name or of all lanes."""
        self._forget_ended()
        return sum(thread.stuck for thread in self._abandoned if name is None or thread.lane.name == name)

    def abandoned(self) -> list[Stoppable]:
        """Return the abandoned threads that have not ended yet."""
        self._forget_ended()
        return [thread.lane for thread in self._abandoned]

    def stop(self, lane: Stoppable, loop: asyncio.AbstractEventLoop) -> None:
        """Interrupt the thread of an abandoned lane immediately, and repeatedly until it ends."""
        thread = _Abandoned(lane)
        self._abandoned.append(thread)
        self._attempt(thread, loop)

    def _attempt(self, thread: _Abandoned, loop: asyncio.AbstractEventLoop) -> None:
        self._forget_ended()
        if thread.lane.ended:
            return
        progress = thread.lane.progress
        if progress != thread.progress:
            thread.progress, thread.delay = (
                progress,
                _UNWINDING_DELAY,
            )  # the thread was interrupted and unwinds its runs
        else:
            thread.attempts += 1
            thread.lane.interrupt(thread.attempts)
            thread.delay = min(thread.delay * 2, _LAST_DELAY)
            if thread.attempts == STUCK_AFTER + 1:
                self._report(thread)
        loop.call_later(thread.delay, self._attempt, thread, loop)

    def _report(self, thread: _Abandoned) -> None:
        logger.error(
            "a thread of %s cannot be stopped and is abandoned; this worker has %d such threads",
            thread.lane.name,
            self.stuck(),
        )
        if self.too_many and not self._reported:
            self._reported = True
            logger.error("more than %d threads cannot be stopped: this worker is unhealthy", self._max_stuck)
            if self._on_too_many is not None:
                self._on_too_many()

    def _forget_ended(self) -> None:
        self._abandoned = [thread for thread in self._abandoned if not thread.lane.ended]
        if self._reported and not self.too_many:
            self._reported = False
