"""What all processes of one tree share: the clock, the reports, and the killed that have not unwound yet.

A killed process is dead at once; its coroutine unwinds on the next turn, and some linger. The node counts them, so that
stopping a tree can wait until no task is left, and throws a lingering one away after a grace.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from hourglass._supervision.driver import TaskDriver
from hourglass._supervision.exits import Exit
from hourglass._supervision.reports import ReportKind, Reports

# --- time --------------------------------------------------------------------------------------------------------------
#
# Monotonic time and timers, as a part that tests replace. Nothing else in this package knows what time it is.


class Cancellable(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> None:
        """Make it not happen. Harmless once it has."""


class MonotonicClock(Protocol):
    """Monotonic time in seconds, and callbacks that are due later on the loop's thread."""

    def now(self) -> float:
        """The time."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Cancellable:
        """Call back after so many seconds."""
        ...


class LoopClock:
    """The running event loop's own clock."""

    def now(self) -> float:
        """The loop's monotonic time."""
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Cancellable:
        """A timer of the loop."""
        return asyncio.get_running_loop().call_later(delay, callback)


# --- the node ----------------------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.supervision")

GRACE = 5.0


class Node:
    """Clock, reports and the unwinding of one tree."""

    def __init__(self, clock: MonotonicClock | None, reports: Reports, *, grace: float) -> None:
        self.clock = clock or LoopClock()
        self.reports = reports
        self._grace = grace
        self._unwinding: dict[TaskDriver, Cancellable | None] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def report(self, kind: ReportKind, path: str, reason: Exit | None = None, detail: str = "") -> None:
        """Report something at the present time."""
        self.reports.add(kind, path, self.clock.now(), reason, detail)

    def unwinds(self, driver: TaskDriver) -> None:
        """A coroutine was killed."""
        self._unwinding.setdefault(driver, None)

    def lingers(self, driver: TaskDriver) -> None:
        """A killed coroutine goes on: it gets a grace for its clean-up."""
        if driver in self._unwinding:
            self._unwinding[driver] = self.clock.call_later(self._grace, driver.discard)

    def unwound(self, driver: TaskDriver) -> None:
        """A coroutine has ended; whether it had been killed does not matter."""
        if driver not in self._unwinding:
            return
        timer = self._unwinding.pop(driver)
        if timer is not None:
            timer.cancel()
        if not self._unwinding:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    async def wait_unwound(self) -> None:
        """Wait until no killed coroutine is left; the grace bounds it."""
        while self._unwinding:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
