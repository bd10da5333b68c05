"""Stopping a thread whose code does not return, and counting the threads that cannot be stopped.

Python raises an exception in another thread at its next bytecode (`PyThreadState_SetAsyncExc`). That ends a loop
within a millisecond; it does not reach a call into C, and code that catches everything swallows it. So the exception
is raised again and again, less and less often, while the thread lives (`Stopper`). A thread that does not end is
*stuck*: counted, reported when there are too many, and forgotten if it ends after all.

Two dangers, and how they are avoided:

- An exception between a lock's `acquire` and the following `try` leaves the lock held forever: a thread is not
  interrupted while its innermost frame is one of the standard library's (`may_interrupt`).
- While an exception waits for a thread that is in C, Python 3.11 keeps the whole interpreter's alarm raised, and a
  thread that is profiled or traced spins at its next call until the exception is delivered. So it never waits: it is
  withdrawn if it has not been delivered after a moment (`raise_briefly`).

Runs on the control loop, and only after a lane was abandoned. Must not know workflows, queues of lanes, or restarts.
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

STUCK_AFTER = 8  # attempts: about a quarter of a second
_FIRST_DELAY, _LAST_DELAY = 0.001, 5.0
_UNWINDING_DELAY = 0.25  # how long a thread may take to unwind one of its runs
_FIRST_WAIT, _LONGEST_WAIT = 0.001, 0.01
_LIBRARY_ATTEMPTS = 12  # then library code is interrupted too, unless it holds a lock of the whole process

# All threads share the locks of these modules: held forever, they would stop the process.
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
    """Raised in the thread of a lane that was abandoned, to end it. Not an error; not to be caught."""


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

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the thread's end. Not on the control loop."""
        ...


class _Settled(BaseException):
    pass


def raise_briefly(thread_id: int, seconds: float) -> None:
    """Raise `LaneStopped` in a thread; withdraw it if it is not delivered within `seconds`.

    The thread must not end meanwhile, because another thread could get its id.
    """
    # In one frame, and calling only C: while the alarm is raised, a traced thread does not complete its next call, and it
    # may be this thread. Only a delivered exception resets the alarm, so we raise one for ourselves at the end.
    try:
        _set_async_exc(thread_id, LaneStopped)
        sleep(seconds)
        _clear_async_exc(thread_id, None)
        _set_async_exc(get_ident(), _Settled)
        for _ in (1, 2):  # a backward jump, where the interpreter delivers it at the latest
            pass
    except _Settled:
        pass


def cpu_time(thread_id: int) -> float | None:
    """Return the processor time of a living thread in seconds, None if the system does not show it."""
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
    """Return how long an attempt waits for the delivery: longer each time, as many threads may want the interpreter."""
    return min(_FIRST_WAIT * (1 << min(attempt - 1, 10)), _LONGEST_WAIT)


@dataclass(eq=False)
class _Abandoned:
    lane: Stoppable
    # From 0: a thread that unwinds already has a larger number, so its progress is seen at the first attempt.
    progress: int = 0
    attempts: int = 0
    delay: float = _FIRST_DELAY

    @property
    def stuck(self) -> bool:
        return self.attempts > STUCK_AFTER


class Stopper:
    """Interrupts abandoned threads until they end, and counts the stuck ones."""

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
        """Return the number of stuck threads, of the lane with this name or of all."""
        self._forget_ended()
        return sum(thread.stuck for thread in self._abandoned if name is None or thread.lane.name == name)

    def abandoned(self) -> list[Stoppable]:
        """Return the abandoned threads that have not ended yet."""
        self._forget_ended()
        return [thread.lane for thread in self._abandoned]

    def stop(self, lane: Stoppable, loop: asyncio.AbstractEventLoop) -> None:
        """Interrupt the thread of an abandoned lane, now and until it ends."""
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
            )  # it was interrupted and unwinds its runs
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
            logger.error("more than %d threads are stuck: this worker is not healthy", self._max_stuck)
            if self._on_too_many is not None:
                self._on_too_many()

    def _forget_ended(self) -> None:
        self._abandoned = [thread for thread in self._abandoned if not thread.lane.ended]
        if self._reported and not self.too_many:
            self._reported = False
