"""A bell: wakes everybody who waits for it, on one asyncio loop. A waiter that is cancelled takes nothing
with it.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Those who wait are woken together; a ring that nobody waits for is not kept."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all who wait."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next ring."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
