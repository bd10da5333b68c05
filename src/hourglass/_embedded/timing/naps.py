"""Callbacks by time on one asyncio loop: one timer for all of them, set for the earliest.

Must not know: runs, what the time of day is (a clock says it). A timer of the loop's for each would cost several times
as much, and nearly all are cancelled long before their time. Invariants: callbacks run in the order of their due times,
those of the same instant in the order in which they were asked for; never inside the call that asks; one that raises
keeps none of the others from running; one that is cancelled is let go of at once, and what is left of it is swept out
when such remains are the greater part.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

SECOND = 1_000_000_000

_FEW = 64
"""So many remains are left lying."""


class _Clock(Protocol):
    longest_nap: float

    def now_ns(self) -> int: ...


class Naps:
    """Those who nap on one loop. After `longest_nap` seconds at most it is looked again what time it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: _Clock) -> None:
        self.loop = loop
        self._clock = clock
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, _Nap]] = []
        self._remains = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def add(self, when_ns: int, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` at that time; returns what cancels it."""
        nap = _Nap(self, fn)
        heapq.heappush(self._due, (when_ns, next(self._numbers), nap))
        if self._timer is None or when_ns < self._timer_ns:
            self._set_timer(when_ns)
        return nap.cancel

    def look_again(self) -> None:
        """Time has jumped: who is due sooner than the timer was set for is not kept waiting."""
        if self._due:
            self._set_timer(self._due[0][0])

    def note_cancelled(self) -> None:
        """One more was cancelled."""
        self._remains += 1
        if self._remains > _FEW and self._remains * 2 > len(self._due):
            self._due = [each for each in self._due if each[2].fn is not None]
            heapq.heapify(self._due)
            self._remains = 0

    def _set_timer(self, when_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = when_ns
        left = max(0, when_ns - self._clock.now_ns()) / SECOND
        self._timer = self.loop.call_later(min(left, self._clock.longest_nap), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now, due = self._clock.now_ns(), self._due
        while due and (due[0][0] <= now or due[0][2].fn is None):
            _, _, nap = heapq.heappop(due)
            if nap.fn is None:
                self._remains -= 1
            else:
                self.loop.call_soon(nap.end)
        if due:
            self._set_timer(due[0][0])


class _Nap:
    """One callback, until it is called or cancelled."""

    __slots__ = ("_naps", "fn")

    def __init__(self, naps: Naps, fn: Callable[[], None]) -> None:
        self._naps = naps
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        if self.fn is not None:
            self.fn = None
            self._naps.note_cancelled()

    def end(self) -> None:
        fn, self.fn = self.fn, None
        if fn is not None:
            fn()
