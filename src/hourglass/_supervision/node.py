"""The state shared by all processes of a tree: the clock, the reports, and killed coroutines that still unwind.

A killed process is dead immediately, but its coroutine unwinds in the next iteration of the event loop, and may
linger. The node tracks the coroutines of killed processes, so that stopping a tree can wait until no task is
left. It closes lingering coroutines after a grace period.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from hourglass._supervision.driver import TaskDriver
from hourglass._supervision.exits import Exit
from hourglass._supervision.reports import ReportKind, Reports

# Monotonic time and timers, replaceable by tests. No other code of this package reads a clock.


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the call. Has no effect afterwards."""


class MonotonicClock(Protocol):
    """Monotonic time in seconds, and delayed calls on the loop's thread."""

    def now(self) -> float:
        """Return the current time."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Cancellable:
        """Schedule a call after a delay in seconds."""
        ...


class LoopClock:
    """The running event loop's own clock."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Cancellable:
        return asyncio.get_running_loop().call_later(delay, callback)


logger = logging.getLogger("hourglass.supervision")

GRACE = 5.0


class Node:
    """The clock, the reports and the unwinding coroutines of one tree."""

    def __init__(self, clock: MonotonicClock | None, reports: Reports, *, grace: float) -> None:
        self.clock = clock or LoopClock()
        self.reports = reports
        self._grace = grace
        self._unwinding: dict[TaskDriver, Cancellable | None] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def report(self, kind: ReportKind, path: str, reason: Exit | None = None, detail: str = "") -> None:
        self.reports.add(kind, path, self.clock.now(), reason, detail)

    def unwinds(self, driver: TaskDriver) -> None:
        """Track a killed coroutine."""
        self._unwinding.setdefault(driver, None)

    def lingers(self, driver: TaskDriver) -> None:
        """Schedule the closing of a killed coroutine that keeps running. Until then, the coroutine may clean up."""
        if driver in self._unwinding:
            self._unwinding[driver] = self.clock.call_later(self._grace, driver.discard)

    def unwound(self, driver: TaskDriver) -> None:
        """Stop tracking a coroutine that has ended. Has no effect if the coroutine was not killed."""
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
        """Wait until all killed coroutines have ended. The grace period limits the wait."""
        while self._unwinding:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
