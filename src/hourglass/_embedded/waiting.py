"""`Bell`: a condition on one asyncio loop, which wakes all its waiters.

Invariants: a ring that meets no waiter is not kept; a waiter that is cancelled takes no ring from the others.
"""

from __future__ import annotations

import asyncio


class Bell:
    """A condition: `ring` wakes all tasks that are in `wait`, and is forgotten if there is none."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all waiters."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            _wake(waiter)

    async def wait(self, limit: float | None = None) -> None:
        """Wait for the next ring, but no longer than so many seconds."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if limit is None else loop.call_later(limit, _wake, waiter)
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
