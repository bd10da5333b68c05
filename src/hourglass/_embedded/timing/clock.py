"""Time as a part: the engine asks a clock what time it is and to be called back; it never looks at the wall
itself.

Must not know: runs, tasks, history. Times are nanoseconds since the epoch. Invariants: time never goes back;
callbacks run in the order of their due times, those of the same instant in the order in which they were asked
for; a cancelled callback never runs; a callback never runs inside the call that asked for it.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from hourglass._embedded.timing.naps import SECOND as SECOND
from hourglass._embedded.timing.naps import Naps

Cancel: TypeAlias = Callable[[], None]

_LOOK_EVERY = 20_000_000
"""How often the wall clock is looked at: time is asked for a dozen times per step, and the wall seldom jumps."""

_TOLERANCE = SECOND // 1000

LATEST_NS = 9_223_372_036 * SECOND
"""The latest time that there is, in April 2262: SQLite's integers have 64 bits. What lies beyond it never comes."""

_MOST_SECONDS = LATEST_NS // SECOND


@functools.lru_cache(maxsize=1024)  # the same few timeouts, several times per step
def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, at most as many as a time can have; what is no number counts as none."""
    if seconds != seconds:
        return 0
    return round(max(-_MOST_SECONDS, min(seconds, _MOST_SECONDS)) * SECOND)


def later(ns: int, by_ns: int) -> int:
    """The time so much later than another, or the latest that there is. Every time that is computed comes from here."""
    when = ns + by_ns
    return when if when < LATEST_NS else LATEST_NS


def storable(ns: int) -> int:
    """A time that a caller gave, as near as it can be stored."""
    return max(-LATEST_NS, min(ns, LATEST_NS))


class Clock(Protocol):
    """What the engine needs of time."""

    @property
    def early_is_harmless(self) -> bool:
        """Whether a callback that turns out to be too early costs next to nothing, so that one that is no
        longer needed may be left to run.
        """
        ...

    @property
    def jumps(self) -> int:
        """How often time went on by more than passed: callbacks that are waiting may be late then."""
        ...

    def now_ns(self) -> int:
        """The time now."""
        ...

    def not_before(self, ns: int) -> None:
        """It was this late already: from now on it is not earlier."""
        ...

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` once that time has come; returns what cancels it."""
        ...


class RealClock:
    """The wall clock, on the asyncio loop that is running when a callback is asked for.

    Time goes on as the monotonic clock does. A wall clock that is set forward, or a machine that slept, takes
    it along (`jumps` counts that); one that is set back does not: time neither goes back nor stands still, it
    stays ahead of the wall. Whoever waits naps for at most `longest_nap` seconds before the clock is looked at again.
    """

    longest_nap = 60.0
    early_is_harmless = True

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.jumps = 0
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._ahead = wall_ns() - monotonic_ns()
        self._look_ns = 0
        self._naps: Naps | None = None
        self._followed = 0  # of the jumps, those that the naps have heard of

    def now_ns(self) -> int:
        """The wall clock's time, or later if it was set back."""
        monotonic = self._monotonic_ns()
        if monotonic >= self._look_ns:
            self._look_ns = monotonic + _LOOK_EVERY
            ahead = self._wall_ns() - monotonic
            if ahead > self._ahead + _TOLERANCE:  # less is what lies between the two readings
                self.jumps += ahead > self._ahead + SECOND // 2
                self._ahead = ahead
        return monotonic + self._ahead

    def not_before(self, ns: int) -> None:
        """Time given out from now on is at least this: also after a restart it does not go back."""
        self._ahead += max(0, ns - self.now_ns())

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` on the running loop at that time."""
        loop = asyncio.get_running_loop()
        if self._naps is None or self._naps.loop is not loop:
            self._naps = Naps(loop, self)
        if self._followed != self.jumps:
            self._followed = self.jumps
            self._naps.look_again()
        return self._naps.add(when_ns, fn)


class VirtualClock:
    """A clock that moves only when it is told to, and then only to where something happens."""

    early_is_harmless = False
    jumps = 0

    def __init__(self, start_ns: int = 1_700_000_000 * SECOND) -> None:
        self._now = start_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._live: set[int] = set()

    def now_ns(self) -> int:
        """The virtual time."""
        return self._now

    def not_before(self, ns: int) -> None:
        """Move on to this time if it is later; what falls due by that is called at the next move."""
        self._now = max(self._now, ns)

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` when time is moved to `when_ns` or past it."""
        number = next(self._numbers)
        heapq.heappush(self._due, (when_ns, number, fn))
        self._live.add(number)
        return functools.partial(self._live.discard, number)

    def next_due_ns(self) -> int | None:
        """When the next callback is due; None if nobody waits."""
        due, live = self._due, self._live
        while due:
            if due[0][1] in live:
                return due[0][0]
            heapq.heappop(due)
        return None

    def advance_to_next(self) -> bool:
        """Move to the next due time and call all that is due then; False if nobody waits."""
        due = self.next_due_ns()
        if due is None:
            return False
        self._run_until(max(due, self._now))
        return True

    def advance_one(self) -> bool:
        """Move to the next due time and call one of those that are due then; False if nobody waits."""
        due = self.next_due_ns()
        if due is None:
            return False
        self._now = max(due, self._now)
        _, number, fn = heapq.heappop(self._due)
        self._live.discard(number)
        fn()
        return True

    def advance(self, seconds: float) -> None:
        """Move on by so many seconds, calling what falls due on the way, each at its own time."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        end = later(self._now, to_ns(seconds))
        while (due := self.next_due_ns()) is not None and due <= end:
            self._run_until(max(due, self._now))
        self._now = end

    def _run_until(self, when_ns: int) -> None:
        self._now = when_ns
        due, live = self._due, self._live
        while due and due[0][0] <= when_ns:
            _, number, fn = heapq.heappop(due)
            if number in live:
                live.discard(number)
                fn()
