"""`Bell`: a condition on one asyncio loop, which wakes all its waiters.

Invariants: a ring that meets no waiter is not kept; a waiter that is cancelled takes no ring from the others.
"""

from __future__ import annotations

import asyncio


class Bell:
    """A condition: `ring` wakes all tasks that are in `wait`, and is forgotten if there is none."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[None]] | None = None

    def ring(self) -> None:
        """Wake all waiters."""
        if self.waiters:
            waiters, self.waiters = self.waiters, None
            for waiter in waiters:
                _wake(waiter)

    async def wait(self, limit: float | None = None) -> None:
        """Wait for the next ring, but no longer than so many seconds."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = None if limit is None else loop.call_later(limit, _wake, waiter)
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if self.waiters and waiter in self.waiters:  # it was not a ring that ended the wait
                self.waiters.remove(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
