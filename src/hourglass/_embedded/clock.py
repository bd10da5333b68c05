"""Time as a part: the engine asks a clock what time it is and to be called back; it never looks at the wall
itself.

Must not know: runs, tasks, history. Times are nanoseconds since the epoch. Invariants: time never goes back;
callbacks run in the order of their due times, those of the same instant in the order in which they were asked
for; a cancelled callback never runs; a callback never runs inside the call that asked for it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

Cancel: TypeAlias = Callable[[], None]

SECOND = 1_000_000_000


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(seconds * SECOND)


class Clock(Protocol):
    """What the engine needs of time."""

    def now_ns(self) -> int:
        """The time now."""
        ...

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` once that time has come; returns what cancels it."""
        ...


class RealClock:
    """The wall clock, on the asyncio loop that is running when a callback is asked for.

    Due times are wall time and the loop counts monotonic time, so that a callback may wake early when the
    wall clock was set back: it then goes to sleep again. The time given out never goes back. A nap is at most
    `longest_nap` seconds, so that a wall clock that was set forward, or a machine that slept, is noticed.
    """

    longest_nap = 60.0

    def __init__(self) -> None:
        self._latest = 0

    def now_ns(self) -> int:
        """The wall clock's time, or the latest given out if the wall clock was set back."""
        self._latest = max(self._latest, time.time_ns())
        return self._latest

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` on the running loop at that time."""
        return _Nap(self, when_ns, fn, asyncio.get_running_loop()).cancel


class _Nap:
    """One callback of a real clock: sleeps in pieces until its time has come."""

    def __init__(
        self, clock: RealClock, when_ns: int, fn: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._clock = clock
        self._when = when_ns
        self._fn = fn
        self._loop = loop
        self._timer = self._sleep()

    def _sleep(self) -> asyncio.TimerHandle:
        left = max(0, self._when - self._clock.now_ns()) / SECOND
        return self._loop.call_later(min(left, self._clock.longest_nap), self._wake)

    def _wake(self) -> None:
        if self._clock.now_ns() >= self._when:
            self._fn()
        else:
            self._timer = self._sleep()

    def cancel(self) -> None:
        self._timer.cancel()


class VirtualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, start_ns: int = 1_700_000_000 * SECOND) -> None:
        self._now = start_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._live: set[int] = set()

    def now_ns(self) -> int:
        """The virtual time."""
        return self._now

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` when time is moved to `when_ns` or past it."""
        number = next(self._numbers)
        heapq.heappush(self._due, (when_ns, number, fn))
        self._live.add(number)
        return lambda: self._live.discard(number)

    def next_due_ns(self) -> int | None:
        """When the next callback is due; None if nobody waits."""
        while self._due and self._due[0][1] not in self._live:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def advance_to_next(self) -> bool:
        """Move to the next due time and call all that is due then; False if nobody waits."""
        due = self.next_due_ns()
        if due is None:
            return False
        self._run_until(max(due, self._now))
        return True

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds, calling what falls due on the way, each at its own time."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        end = self._now + to_ns(seconds)
        while (due := self.next_due_ns()) is not None and due <= end:
            self._run_until(max(due, self._now))
        self._now = end

    def _run_until(self, when_ns: int) -> None:
        self._now = when_ns
        while (due := self.next_due_ns()) is not None and due <= when_ns:
            _, number, fn = heapq.heappop(self._due)
            self._live.discard(number)
            fn()
