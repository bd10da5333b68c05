"""Clocks of the engine: they return the time, and run callbacks at given times.

`RealClock` follows the wall clock and reports when it jumps. `VirtualClock` moves only when a test moves it. A timer
queue (`TimerQueue`) serves all callbacks with a single timer of the event loop, set for the earliest callback. A loop
timer for each callback would cost several times as much, and nearly all callbacks are cancelled long before they are
due. `Bell` is a condition for waits that end with an event instead of a time.

Must not know: runs, tasks, stores. Times are nanoseconds since the epoch. `LATEST_NS`, `later`, `to_ns` and
`storable` keep every time within the 64 bits of a store. The wall clock may be set forward or back at any moment,
even for only two seconds. The time that the monotonic clock confirms is tracked separately (`trusted_ns`).

Invariants:

- Time goes back only with a counted jump, at most as far as the wall clock and never below the trusted time.
- Callbacks run in the order of their due times, and callbacks with equal due times in the order of registration.
- A cancelled callback never runs.
- A callback never runs inside the call that registered it.
- A callback that raises an exception does not keep others from running.
- A ring without waiters has no effect later, and a cancelled waiter does not consume a ring.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import math
from collections.abc import Callable
from datetime import timedelta
from time import monotonic_ns, time_ns
from typing import Protocol, TypeAlias

import msgspec

SECOND = 1_000_000_000

_MAX_CANCELLED = 64
"""The number of cancelled callbacks above which a cleanup of the queue is considered."""


_BATCH = 16
"""The number of due callbacks that run before other work may run, because 100,000 timers may be due at the same time."""


class _Clock(Protocol):
    longest_wait: float

    def now_ns(self) -> int: ...


class TimerQueue:
    """The pending callbacks of one event loop. The clock is checked at least every `longest_wait` seconds.

    A cancelled callback is released immediately. Its entry is removed from the queue once most entries are cancelled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: _Clock) -> None:
        self.loop = loop
        self._clock = clock
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, _Timer]] = []
        self._cancelled_count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0

    def add(self, when_ns: int, fn: Callable[[], None]) -> Callable[[], None]:
        """Call `fn` at the given time. Return a function that cancels the callback."""
        timer = _Timer(self, fn)
        heapq.heappush(self._due, (when_ns, next(self._numbers), timer))
        if self._timer is None or when_ns < self._timer_ns:
            self._set_timer(when_ns)
        return timer.cancel

    def recheck(self) -> None:
        """Set the loop timer again after the clock has jumped, so that callbacks are not late."""
        if self._due:
            self._set_timer(self._due[0][0])

    def note_cancelled(self) -> None:
        """Count a cancelled callback, and clean up the queue if most are cancelled."""
        self._cancelled_count += 1
        if self._cancelled_count > _MAX_CANCELLED and self._cancelled_count * 2 > len(self._due):
            self._due = [entry for entry in self._due if entry[2].fn is not None]
            heapq.heapify(self._due)
            self._cancelled_count = 0

    def _set_timer(self, when_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = when_ns
        left = max(0, when_ns - self._clock.now_ns()) / SECOND
        self._timer = self.loop.call_later(min(left, self._clock.longest_wait), self._wake)

    def _wake(self) -> None:
        self._timer = None
        now, due, called = self._clock.now_ns(), self._due, 0
        while due and called < _BATCH and (due[0][0] <= now or due[0][2].fn is None):
            _, _, timer = heapq.heappop(due)
            if timer.fn is None:
                self._cancelled_count -= 1
            else:
                called += 1
                # Do not call it here: an exception must not prevent other callbacks.
                self.loop.call_soon(timer.end)
        if due:
            self._set_timer(due[0][0])


class _Timer:
    """A pending callback, until it is called or cancelled."""

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


Cancel: TypeAlias = Callable[[], None]

_CHECK_NS = 20_000_000
"""The interval between checks of the wall clock. The engine reads the time a dozen times per step, and jumps are rare."""

_TOLERANCE = SECOND // 1000

LATEST_NS = 9_223_372_036 * SECOND
"""The latest time, in April 2262, because a store's integers have 64 bits. Later times are never reached."""

_MOST_SECONDS = LATEST_NS // SECOND
JUMP = SECOND // 2
"""The difference between the wall clock and the monotonic clock above which the wall clock counts as set."""

CONFIRMED = 6 * 3600 * SECOND
"""How long the wall clock must agree with the monotonic clock before it is trusted again after a jump. The time in
earlier processes counts, too.
"""

SLOWER = 10
"""If time is ahead of a wall clock that was set back, time runs slower by a fraction of 1/`SLOWER`."""

logger = logging.getLogger("hourglass.embedded")


@functools.lru_cache(maxsize=1024)  # the same few timeouts recur several times per step
def to_ns(seconds: float) -> int:
    """Convert seconds to nanoseconds, limited to the range of times; NaN becomes 0."""
    if math.isnan(seconds):
        return 0
    return round(max(-_MOST_SECONDS, min(seconds, _MOST_SECONDS)) * SECOND)


def later(ns: int, by_ns: int) -> int:
    """Add a duration to a time, limited to the latest time. Every computed time must be computed with this function."""
    when = ns + by_ns
    return when if when < LATEST_NS else LATEST_NS


def storable(ns: int) -> int:
    """Return a time from a caller, limited to the range that can be stored."""
    return max(-LATEST_NS, min(ns, LATEST_NS))


class TrustedTime(msgspec.Struct, frozen=True):
    """The stored state of a clock: the trusted time, and for how long the wall clock has been steady."""

    trusted_ns: int
    steady_ns: int = CONFIRMED


class Clock(Protocol):
    """The engine's interface to time."""

    @property
    def early_is_harmless(self) -> bool:
        """Whether an unnecessary callback is cheap, so that a callback need not be cancelled when it is no longer
        needed.
        """
        ...

    @property
    def jumps(self) -> int:
        """The number of times that the wall clock was set. After each jump, pending callbacks may be late."""
        ...

    @property
    def trusted_ns(self) -> int:
        """The time that has certainly been reached. Actions based on it remain correct even if the wall clock turns
        out to be wrong.
        """
        ...

    def now_ns(self) -> int:
        """Return the current time."""
        ...

    def resume(self, latest_ns: int, trusted_time: TrustedTime | None, tolerated_ns: int) -> None:
        """Continue the time of an earlier process.

        `latest_ns` is the time of the newest event in the store, and `trusted_time` is the stored state of the clock.
        `tolerated_ns` is the longest gap between two processes for which the wall clock is still trusted.
        """
        ...

    def trusted_time(self) -> TrustedTime | None:
        """Return the state to store for a later process; None if there is none."""
        ...

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` once the given time has come. Return a function that cancels the callback."""
        ...

    def call_after(self, wait_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` after a duration, independently of the wall clock. Return a function that cancels the callback."""
        ...


class RealClock:
    """The wall clock. Callbacks run on the event loop that is running when they are registered.

    Time advances with the monotonic clock. If the wall clock is set forward, or the machine was asleep, time follows
    the wall clock. If the wall clock is set back, time follows it down to the trusted time, which the monotonic clock
    has counted. Below that, time neither goes back nor stops: it runs a tenth slower until the wall clock has caught
    up. A jump is logged and counted in `jumps`. The timer queue checks the clock at least every `longest_wait`
    seconds.
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
        # Offsets from the monotonic clock to the current time and to the trusted time.
        self._ahead = self._trusted = wall_ns() - monotonic_ns()
        self._steady_ns = CONFIRMED
        self._checked_ns = monotonic_ns()
        self._check_interval = _CHECK_NS
        self._owed_ns = 0
        self._is_slow = False
        self._timers: TimerQueue | None = None
        self._waits: TimerQueue | None = None
        self._followed = 0  # the value of `jumps` for which the timers were last adjusted

    def now_ns(self) -> int:
        """Return the wall clock's time, or a later time if the wall clock was set back below the trusted time."""
        monotonic = self._monotonic_ns()
        if monotonic >= self._checked_ns + self._check_interval:
            self._check_wall(monotonic)
        return monotonic + self._ahead

    @property
    def trusted_ns(self) -> int:
        """The time that has certainly been reached."""
        return min(self.now_ns(), self._monotonic_ns() + self._trusted)

    def resume(self, latest_ns: int, trusted_time: TrustedTime | None, tolerated_ns: int) -> None:
        """Continue the time of an earlier process (see `Clock`)."""
        now = self.now_ns()
        if trusted_time is None:  # a new file
            trusted_time = TrustedTime(min(latest_ns or now, now))
        gap = now - trusted_time.trusted_ns
        if gap < -JUMP:
            logger.warning(
                "the wall clock is %s behind the time at which the file was last used. The engine continues from that "
                "time and runs 10 %% slower until the wall clock has caught up",
                _duration_text(-gap),
            )
            self._is_slow = True
        # After a short gap and with a steady wall clock, the wall clock is trusted. Otherwise it is only
        # followed.
        if gap <= tolerated_ns and trusted_time.steady_ns >= CONFIRMED:
            self._trusted = self._ahead = self._ahead + max(0, -gap)
            self._steady_ns = trusted_time.steady_ns
            return
        self._ahead += max(0, -gap)
        self._trusted = trusted_time.trusted_ns - self._monotonic_ns()
        self._steady_ns = 0 if gap > tolerated_ns else trusted_time.steady_ns

    def trusted_time(self) -> TrustedTime:
        """Return the state to store for a later process."""
        return TrustedTime(self.trusted_ns, self._steady_ns)

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` on the running event loop at the given time."""
        loop = asyncio.get_running_loop()
        if self._timers is None or self._timers.loop is not loop:
            self._timers = TimerQueue(loop, self)
        if self._followed != self.jumps:
            self._followed = self.jumps
            self._timers.recheck()
        return self._timers.add(when_ns, fn)

    def call_after(self, wait_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` on the running event loop after a duration."""
        loop = asyncio.get_running_loop()
        if self._waits is None or self._waits.loop is not loop:
            self._waits = TimerQueue(loop, _Monotonic(self._monotonic_ns))
        return self._waits.add(self._monotonic_ns() + wait_ns, fn)

    def _check_wall(self, monotonic: int) -> None:
        """Compare the time with the wall clock and correct it."""
        wall, after = self._wall_ns(), self._monotonic_ns()
        if after - monotonic > _TOLERANCE:
            self._checked_ns = monotonic
            return  # this thread was suspended between the two readings, so they cannot be compared
        passed, self._checked_ns = monotonic - self._checked_ns, monotonic
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
            self._check_interval, self._owed_ns = _CHECK_NS, 0

    def _follow_forward(self, difference: int) -> None:
        self._is_slow = False
        self._check_interval, self._owed_ns = _CHECK_NS, 0
        self._ahead += difference
        if difference <= JUMP:  # one clock runs slightly faster than the other
            self._trusted += difference

    def _follow_back(self, difference: int, passed: int) -> None:
        # Time goes back only with a counted jump, so that pending waits are adjusted.
        step = min(-difference, max(0, self._ahead - self._trusted)) if -difference > JUMP else 0
        self._ahead -= step
        remaining = -difference - step
        if remaining > 0:
            self._is_slow = self._is_slow or remaining > JUMP
            # A time that was already returned must not be followed by an earlier one. The rest of the
            # correction is owed.
            self._owed_ns += passed // SLOWER
            slower = min(remaining, self._owed_ns, max(0, passed - self._check_interval) // 2)
            self._check_interval = 0
            self._owed_ns -= slower
            self._ahead -= slower
            self._trusted -= slower

    def _note_jump(self, difference: int) -> None:
        self.jumps += 1
        self._steady_ns = 0
        if difference > 0:
            logger.warning(
                "the wall clock jumped forward by %s (the clock was set, or the machine was suspended). Everything that "
                "is now due is executed. Closed workflows are not deleted until the clock has been steady for %s",
                _duration_text(difference),
                _duration_text(CONFIRMED),
            )
            return
        below = -difference - max(0, self._ahead - self._trusted)
        if below <= JUMP:
            logger.warning(
                "the wall clock jumped back by %s, and the engine's clock follows it",
                _duration_text(-difference),
            )
        else:
            logger.warning(
                "the wall clock jumped back by %s. The engine's clock is %s ahead and runs 10 %% slower until the wall "
                "clock has caught up",
                _duration_text(-difference),
                _duration_text(below),
            )


class _Monotonic:
    """The monotonic clock, for a timer queue."""

    longest_wait = 60.0

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns


def _duration_text(ns: int) -> str:
    return str(timedelta(milliseconds=round(ns / SECOND, 1) * 1000)).removesuffix("00000")


class VirtualClock:
    """A clock that moves only on request, and runs each due callback on the way."""

    early_is_harmless = False
    jumps = 0

    def __init__(self, start_ns: int = 1_700_000_000 * SECOND) -> None:
        self._now = start_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._live: set[int] = set()

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self._now

    @property
    def trusted_ns(self) -> int:
        """The virtual time, because there is no wall clock that could be wrong."""
        return self._now

    def resume(self, latest_ns: int, trusted_time: TrustedTime | None, tolerated_ns: int) -> None:
        """Move to the time of the newest event if it is later. Callbacks that become due run at the next move."""
        self._now = max(self._now, latest_ns)

    def trusted_time(self) -> None:
        """Return None, because there is no wall clock that could be set."""

    def call_after(self, wait_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` after a duration of virtual time."""
        return self.call_at(self._now + wait_ns, fn)

    def call_at(self, when_ns: int, fn: Callable[[], None]) -> Cancel:
        """Call `fn` when the virtual time reaches `when_ns`."""
        number = next(self._numbers)
        heapq.heappush(self._due, (when_ns, number, fn))
        self._live.add(number)
        return functools.partial(self._live.discard, number)

    def forget_all(self) -> None:
        """Cancel all callbacks."""
        self._due.clear()
        self._live.clear()

    def next_due_ns(self) -> int | None:
        """Return the due time of the next callback; None if there is none."""
        due, live = self._due, self._live
        while due:
            if due[0][1] in live:
                return due[0][0]
            heapq.heappop(due)
        return None

    def advance_to_next(self) -> bool:
        """Move to the next due time and run all callbacks that are due. Return False if no callback is pending."""
        due = self.next_due_ns()
        if due is None:
            return False
        self._run_until(max(due, self._now))
        return True

    def advance_one(self) -> bool:
        """Move to the next due time and run a single callback. Return False if no callback is pending."""
        due = self.next_due_ns()
        if due is None:
            return False
        self._now = max(due, self._now)
        _, number, fn = heapq.heappop(self._due)
        self._live.discard(number)
        fn()
        return True

    def advance(self, seconds: float) -> None:
        """Advance the time by `seconds` and run each callback at its due time."""
        if seconds < 0:
            raise ValueError(f"the clock cannot be moved back: seconds must not be negative, not {seconds}")
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


class Bell:
    """A condition: `ring` wakes all tasks that are in `wait`. Without waiters, `ring` has no effect."""

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
        """Wait for the next ring, for at most `limit` seconds. Return whether the bell rang."""
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
            if self.waiters and waiter in self.waiters:  # timed out or cancelled
                self.waiters.remove(waiter)


def _wake(waiter: asyncio.Future[bool], rang: bool) -> None:
    if not waiter.done():
        waiter.set_result(rang)
