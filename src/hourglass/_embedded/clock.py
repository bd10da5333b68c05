"""Time as a part: the engine asks a clock what time it is, and to be called back. `RealClock` follows the wall clock,
and says when it jumps; `VirtualClock` moves only when a test lets it. Underneath is a timer queue (`TimerQueue`): one timer
of the loop for all callbacks, set for the earliest, because a timer of the loop's for each would cost several times
as much, and nearly all are cancelled long before their time. What waits for something to happen, not for a time, waits at
a condition (`Bell`).

Must not know: runs, tasks, stores. Times are nanoseconds since the epoch; `LATEST_NS`, `later`, `to_ns` and
`storable` keep every one of them within the 64 bits of a store. The wall clock may be set, forward or back, for good or for
two seconds; what the monotonic clock vouches for is known apart from it (`trusted_ns`).

Invariants: time goes back only with a jump that is counted, as far as the wall clock does and never behind what is
trusted; callbacks run in the order of their due times, those of the same instant in the order in which they were asked
for; a cancelled callback never runs; a callback never runs inside the call that asked for it; one that raises keeps
none of the others from running; a ring that meets no waiter is not kept, and a waiter that is cancelled takes no ring
from the others.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
from collections.abc import Callable
from datetime import timedelta
from time import monotonic_ns, time_ns
from typing import Protocol, TypeAlias

import msgspec

# --- a timer queue --------------------------------------------------------------------------------------------


SECOND = 1_000_000_000

_FEW = 64
"""So many cancelled callbacks may lie in the queue before they are swept out."""


_AT_ONCE = 16
"""So many callbacks that are due run before others get their turn: a hundred thousand timers may be set for one moment."""


class _Clock(Protocol):
    longest_wait: float

    def now_ns(self) -> int: ...


class TimerQueue:
    """The callbacks that wait on one loop. After `longest_wait` seconds at most the clock is looked at again.

    A cancelled callback is let go of at once; its empty place in the queue is swept out when such places are the
    greater part.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: _Clock) -> None:
        self.loop = loop
        self._clock = clock
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, _Timer]] = []
        self._remains = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def add(self, when_ns: int, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` at that time; returns what cancels it."""
        timer = _Timer(self, fn)
        heapq.heappush(self._due, (when_ns, next(self._numbers), timer))
        if self._timer is None or when_ns < self._timer_ns:
            self._set_timer(when_ns)
        return timer.cancel

    def look_again(self) -> None:
        """Time has jumped: set the timer anew, so that a callback that is due sooner now is not late."""
        if self._due:
            self._set_timer(self._due[0][0])

    def note_cancelled(self) -> None:
        """One more callback was cancelled."""
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
        self._timer = self.loop.call_later(min(left, self._clock.longest_wait), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now, due, called = self._clock.now_ns(), self._due, 0
        while due and called < _AT_ONCE and (due[0][0] <= now or due[0][2].fn is None):
            _, _, timer = heapq.heappop(due)
            if timer.fn is None:
                self._remains -= 1
            else:
                called += 1
                # Not called here: one that raises must stop none of the others.
                self.loop.call_soon(timer.end)
        if due:
            self._set_timer(due[0][0])


class _Timer:
    """One callback, until it is called or cancelled."""

    __slots__ = ("_timers", "fn")

    def __init__(self, timers: TimerQueue, fn: Callable[[], None]) -> None:
        self._timers = timers
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        if self.fn is not None:
            self.fn = None
            self._timers.note_cancelled()

    def end(self) -> None:
        fn, self.fn = self.fn, None
        if fn is not None:
            fn()


# --- clocks ---------------------------------------------------------------------------------------------------


Cancel: TypeAlias = Callable[[], None]

_LOOK_EVERY = 20_000_000
"""How often the wall clock is looked at: time is asked for a dozen times per step, and the wall seldom jumps."""

_TOLERANCE = SECOND // 1000

LATEST_NS = 9_223_372_036 * SECOND
"""The latest time that there is, in April 2262: a store's integers have 64 bits. What lies beyond it never comes."""

_MOST_SECONDS = LATEST_NS // SECOND
JUMP = SECOND // 2
"""By so much the wall clock must differ from what passed for it to count as set."""

CONFIRMED = 6 * 3600 * SECOND
"""For so long the wall clock must go as the monotonic clock does, while this or earlier processes run, before what it
says after a jump is trusted.
"""

SLOWER = 10
"""Where time is ahead of a wall clock that was set back below what is trusted, it goes slower by one part in so many.
"""

logger = logging.getLogger("hourglass.embedded")


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


class Vouched(msgspec.Struct, frozen=True):
    """What a store keeps of a clock: how late it certainly was, and for how long its wall clock had not jumped."""

    trusted_ns: int
    steady_ns: int = CONFIRMED


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
        """How often the wall clock was set: callbacks that are waiting may be late then."""
        ...

    @property
    def trusted_ns(self) -> int:
        """How late it certainly is: what is done by this time need not be undone if the wall clock turns out wrong."""
        ...

    def now_ns(self) -> int:
        """The time now."""
        ...

    def resume(self, latest_ns: int, vouched: Vouched | None, tolerated_ns: int) -> None:
        """Go on where an earlier process ended: the time of the newest event, what was known of time, if anything
        was, and how long a time in which no process ran is taken for that.
        """
        ...

    def vouched(self) -> Vouched | None:
        """What a later process must know; None for nothing."""
        ...

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` once that time has come; returns what cancels it."""
        ...

    def call_after(self, wait_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` after so much has passed, whatever becomes of the time of day; returns what cancels it."""
        ...


class RealClock:
    """The wall clock, on the asyncio loop that is running when a callback is asked for.

    Time goes on as the monotonic clock does. A wall clock that is set forward, or a machine that slept, takes it
    along; one that is set back does so too, as far as what is trusted, which is what the monotonic clock has counted.
    Below that, time neither goes back nor stands still: it goes a tenth slower until the wall has caught up. A jump
    is logged, and counted in `jumps`. The timer queue looks at the clock again after `longest_wait` seconds at most.
    """

    longest_wait = 60.0
    early_is_harmless = True

    def __init__(
        self,
        wall_ns: Callable[[], int] = time_ns,
        monotonic_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.jumps = 0
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        # Both as offsets to the monotonic clock: of the time that is given out, and of what is trusted.
        self._ahead = self._trusted = wall_ns() - monotonic_ns()
        self._steady_ns = CONFIRMED
        self._looked_ns = monotonic_ns()
        self._look_every = _LOOK_EVERY
        self._owed = 0
        self._is_slow = False
        self._timers: TimerQueue | None = None
        self._waits: TimerQueue | None = None
        self._followed = 0  # of the jumps, those that the timers have heard of

    def now_ns(self) -> int:
        """The wall clock's time, or later if it was set back below what is trusted."""
        monotonic = self._monotonic_ns()
        if monotonic >= self._looked_ns + self._look_every:
            self._look(monotonic)
        return monotonic + self._ahead

    @property
    def trusted_ns(self) -> int:
        """How late it certainly is."""
        return min(self.now_ns(), self._monotonic_ns() + self._trusted)

    def resume(self, latest_ns: int, vouched: Vouched | None, tolerated_ns: int) -> None:
        """Go on where an earlier process ended."""
        now = self.now_ns()
        if vouched is None:  # a new file, or one from before this was kept
            vouched = Vouched(min(latest_ns or now, now))
        gap = now - vouched.trusted_ns
        if gap < -JUMP:
            logger.warning(
                "the wall clock is %s behind the time at which the file was last in use: time goes on from there, "
                "a tenth slower, until the wall clock has caught up",
                _told(-gap),
            )
            self._is_slow = True
        # After a short gap, with a wall clock that had been steady, its time is trusted; else it is only followed.
        if gap <= tolerated_ns and vouched.steady_ns >= CONFIRMED:
            self._trusted = self._ahead = self._ahead + max(0, -gap)
            self._steady_ns = vouched.steady_ns
            return
        self._ahead += max(0, -gap)
        self._trusted = vouched.trusted_ns - self._monotonic_ns()
        self._steady_ns = 0 if gap > tolerated_ns else vouched.steady_ns

    def vouched(self) -> Vouched:
        """What a later process must know."""
        return Vouched(self.trusted_ns, self._steady_ns)

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` on the running loop at that time."""
        loop = asyncio.get_running_loop()
        if self._timers is None or self._timers.loop is not loop:
            self._timers = TimerQueue(loop, self)
        if self._followed != self.jumps:
            self._followed = self.jumps
            self._timers.look_again()
        return self._timers.add(when_ns, fn)

    def call_after(self, wait_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` on the running loop after so much has passed."""
        loop = asyncio.get_running_loop()
        if self._waits is None or self._waits.loop is not loop:
            self._waits = TimerQueue(loop, _Monotonic(self._monotonic_ns))
        return self._waits.add(self._monotonic_ns() + wait_ns, fn)

    def _look(self, monotonic: int) -> None:
        """Compare with the wall."""
        wall, after = self._wall_ns(), self._monotonic_ns()
        if after - monotonic > _TOLERANCE:
            self._looked_ns = monotonic
            return  # this thread was not running between the two readings: they say nothing
        passed, self._looked_ns = monotonic - self._looked_ns, monotonic
        difference = wall - monotonic - self._ahead
        if abs(difference) > JUMP and not (self._is_slow and difference < 0):
            self._note_jump(difference)
        elif self._steady_ns < CONFIRMED:
            self._steady_ns += passed
            if self._steady_ns >= CONFIRMED:
                self._trusted = self._ahead
        if difference > _TOLERANCE:
            self._follow_forward(difference)
        elif difference < -_TOLERANCE:
            self._follow_back(difference, passed)
        else:
            self._is_slow = False
            self._look_every, self._owed = _LOOK_EVERY, 0

    def _follow_forward(self, difference: int) -> None:
        self._is_slow = False
        self._look_every, self._owed = _LOOK_EVERY, 0
        self._ahead += difference
        if difference <= JUMP:  # the one clock is a little faster than the other
            self._trusted += difference

    def _follow_back(self, difference: int, passed: int) -> None:
        # Only with a jump, which is counted, time goes back: what waits for a time is looked at then.
        step = min(-difference, max(0, self._ahead - self._trusted)) if -difference > JUMP else 0
        self._ahead -= step
        left = -difference - step
        if left > 0:
            self._is_slow = self._is_slow or left > JUMP
            # Time was told since the last look, and must not go back behind that: what cannot be taken off now is owed.
            self._owed += passed // SLOWER
            slower = min(left, self._owed, max(0, passed - self._look_every) // 2)
            self._look_every = 0
            self._owed -= slower
            self._ahead -= slower
            self._trusted -= slower

    def _note_jump(self, difference: int) -> None:
        self.jumps += 1
        self._steady_ns = 0
        if difference > 0:
            logger.warning(
                "the wall clock jumped forward by %s (it was set, or the machine slept): what is due by it is done; "
                "closed workflows are not forgotten by it until it has been steady for %s",
                _told(difference),
                _told(CONFIRMED),
            )
            return
        below = -difference - max(0, self._ahead - self._trusted)
        if below <= JUMP:
            logger.warning("the wall clock jumped back by %s: time follows it", _told(-difference))
        else:
            logger.warning(
                "the wall clock jumped back by %s: time goes on, %s ahead of it, and a tenth slower until the wall "
                "clock has caught up",
                _told(-difference),
                _told(below),
            )


class _Monotonic:
    """What passes, as a clock."""

    longest_wait = 60.0

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns


def _told(ns: int) -> str:
    return str(timedelta(milliseconds=round(ns / SECOND, 1) * 1000)).removesuffix("00000")


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

    @property
    def trusted_ns(self) -> int:
        """All of it: there is no wall."""
        return self._now

    def resume(self, latest_ns: int, vouched: Vouched | None, tolerated_ns: int) -> None:
        """Move on to the newest event if it is later; what falls due by that is called at the next move."""
        self._now = max(self._now, latest_ns)

    def vouched(self) -> None:
        """Nothing: virtual time has no wall that could be set."""

    def call_after(self, wait_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` when so much virtual time has passed."""
        return self.call_at(self._now + wait_ns, fn)

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` when time is moved to `when_ns` or past it."""
        number = next(self._numbers)
        heapq.heappush(self._due, (when_ns, number, fn))
        self._live.add(number)
        return functools.partial(self._live.discard, number)

    def forget_all(self) -> None:
        """Call nothing of what waits, ever."""
        self._due.clear()
        self._live.clear()

    def next_due_ns(self) -> int | None:
        """When the next callback is due; None if there is none."""
        due, live = self._due, self._live
        while due:
            if due[0][1] in live:
                return due[0][0]
            heapq.heappop(due)
        return None

    def advance_to_next(self) -> bool:
        """Move to the next due time and call all that is due then; False if no callback waits."""
        due = self.next_due_ns()
        if due is None:
            return False
        self._run_until(max(due, self._now))
        return True

    def advance_one(self) -> bool:
        """Move to the next due time and call one of those that are due then; False if no callback
        waits.
        """
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


# --- a condition ----------------------------------------------------------------------------------------------


class Bell:
    """A condition: `ring` wakes all tasks that are in `wait`, and is forgotten if there is none."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[bool]] | None = None

    def ring(self) -> None:
        """Wake all waiters."""
        if self.waiters:
            waiters, self.waiters = self.waiters, None
            for waiter in waiters:
                _wake(waiter, True)

    async def wait(self, limit: float | None = None) -> bool:
        """Wait for the next ring, but no longer than so many seconds; whether it rang."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        timer = None if limit is None else loop.call_later(limit, _wake, waiter, False)
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)
        try:
            return await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if self.waiters and waiter in self.waiters:  # it was not a ring that ended the wait
                self.waiters.remove(waiter)


def _wake(waiter: asyncio.Future[bool], rang: bool) -> None:
    if not waiter.done():
        waiter.set_result(rang)
