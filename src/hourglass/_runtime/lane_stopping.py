"""How an abandoned thread is told to stop, and what becomes of one that does not.

Python can raise an exception in another thread, at its next bytecode. That ends a loop in a millisecond; it does not
reach a call into C, and code that catches everything swallows it. So the thread is told again and again, ever more
rarely, while it lives; one that does not listen is *stuck*: counted, reported when there are too many, and forgotten when
it ends after all.

Two dangers, and how they are met:

- An exception that arrives between a lock's `acquire` and the `try` behind it leaves the lock held for ever: a thread is not
  interrupted while its innermost frame is one of the standard library's.
- While an exception waits for a thread that is in C, Python 3.11 keeps the whole interpreter's alarm raised, and a thread that
  is profiled or traced then spins at its next call until it is delivered. So it never waits: what has not arrived after
  a moment is taken back.

Runs on the control loop. Knows no workflows.
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

from hourglass._runtime.places import STDLIB

logger = logging.getLogger("hourglass.worker")

STUCK_AFTER = 8  # attempts: about a quarter of a second
_FIRST_DELAY, _LAST_DELAY = 0.001, 5.0
_UNWINDING_DELAY = 0.25  # what a thread that moves may take for each of its runs
_FIRST_MOMENT, _LAST_MOMENT = 0.001, 0.01
_PATIENCE = 12  # attempts before library code that holds no lock of the whole process is interrupted, too

# Their locks are everybody's: held for ever, they would stop the process.
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
    """This lane has been abandoned: its thread must end. Not an error, and not to be caught."""


class Stoppable(Protocol):
    """A thread that was abandoned."""

    name: str

    @property
    def ended(self) -> bool:
        """Whether the thread has left all code of ours and the author's."""
        ...

    @property
    def progress(self) -> int:
        """A number that moves while the thread cleans up."""
        ...

    def interrupt(self, attempt: int) -> None:
        """Raise `LaneStopped` in the thread, if that is safe now and can help."""
        ...

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the thread's end; not on the control loop."""
        ...


class _Settled(BaseException):
    pass


def raise_briefly(thread_id: int, seconds: float) -> None:
    """Raise `LaneStopped` in a thread if it takes it within so many seconds. It must not end meanwhile: its number may go
    to another one.

    In one frame, and calling nothing but C: with the alarm raised, a traced thread does not get through its next call, and that
    thread may be this one. Only delivering an exception silences the alarm, so we raise one for ourselves at the end.
    """
    try:
        _set_async_exc(thread_id, LaneStopped)
        sleep(seconds)
        _clear_async_exc(thread_id, None)
        _set_async_exc(get_ident(), _Settled)
        for _ in (1, 2):
            pass
    except _Settled:
        pass


def cpu_time(thread_id: int) -> float | None:
    """The processor time of a living thread in seconds, None where nobody tells."""
    clock_of: Any = getattr(time, "pthread_getcpuclockid", None)
    return float(time.clock_gettime(clock_of(thread_id))) if clock_of is not None else None


def may_interrupt(frame: FrameType | None, attempt: int) -> bool:
    """Whether an exception may be raised where a thread stands."""
    if frame is None:
        return True
    file = frame.f_code.co_filename
    if file.startswith(("<frozen importlib", *_NEVER)):
        return False
    return attempt > _PATIENCE or not file.startswith(STDLIB)


def moment(attempt: int) -> float:
    """For how long an attempt waits to be heard: longer each time, should many threads want the interpreter."""
    return min(_FIRST_MOMENT * (1 << min(attempt - 1, 10)), _LAST_MOMENT)


@dataclass(eq=False)
class _Abandoned:
    lane: Stoppable
    progress: int
    attempts: int = 0
    delay: float = _FIRST_DELAY

    @property
    def stuck(self) -> bool:
        return self.attempts > STUCK_AFTER


class Stopper:
    """Tells abandoned threads to stop until they do, and counts those that do not."""

    def __init__(self, max_stuck: int, on_too_many: Callable[[], object] | None) -> None:
        self._max_stuck = max_stuck
        self._on_too_many = on_too_many
        self._told: list[_Abandoned] = []
        self._reported = False

    @property
    def too_many(self) -> bool:
        """Whether more threads are stuck than may be."""
        return sum(each.stuck for each in self._told) > self._max_stuck

    def stuck(self, name: str | None = None) -> int:
        """How many threads do not stop, of the lane with this name or at all."""
        self._forget_ended()
        return sum(each.stuck for each in self._told if name is None or each.lane.name == name)

    def abandoned(self) -> list[Stoppable]:
        """The threads that were told to stop and have not ended yet."""
        self._forget_ended()
        return [each.lane for each in self._told]

    def tell(self, lane: Stoppable, loop: asyncio.AbstractEventLoop) -> None:
        """Tell a thread to stop, now and until it does."""
        told = _Abandoned(lane, progress=0)  # one that unwinds already is moving
        self._told.append(told)
        self._attempt(told, loop)

    def _attempt(self, told: _Abandoned, loop: asyncio.AbstractEventLoop) -> None:
        self._forget_ended()
        if told.lane.ended:
            return
        progress = told.lane.progress
        if progress != told.progress:
            told.progress, told.delay = progress, _UNWINDING_DELAY  # it listens, and unwinds its runs
        else:
            told.attempts += 1
            told.lane.interrupt(told.attempts)
            told.delay = min(told.delay * 2, _LAST_DELAY)
            if told.attempts == STUCK_AFTER + 1:
                self._report(told)
        loop.call_later(told.delay, self._attempt, told, loop)

    def _report(self, told: _Abandoned) -> None:
        logger.error(
            "a thread of %s cannot be stopped and is left behind; %d of them in this worker",
            told.lane.name,
            self.stuck(),
        )
        if self.too_many and not self._reported:
            self._reported = True
            logger.error("more than %d threads are stuck: this worker is not healthy", self._max_stuck)
            if self._on_too_many is not None:
                self._on_too_many()

    def _forget_ended(self) -> None:
        self._told = [each for each in self._told if not each.lane.ended]
        if self._reported and not self.too_many:
            self._reported = False
