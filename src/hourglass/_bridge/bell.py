"""A bell: wakes everybody who waits for it, on one asyncio loop. A ring that nobody waits for is not kept, so
whoever waits looks first and waits then, without an await in between.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Those who wait are woken together; one who is cancelled takes nothing with it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[bool]] = set()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def ring(self) -> None:
        """Wake all who wait."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next ring; False when `timeout` seconds passed without one."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.add(waiter)
        alarm = None if timeout is None else loop.call_later(max(timeout, 0.0), _give_up, waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if alarm is not None:
                alarm.cancel()


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
