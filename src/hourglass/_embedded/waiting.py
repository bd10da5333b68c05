"""Waiting on one asyncio loop: `Bell`, a condition that wakes all its waiters; `TimedBell`, the same with a limit;
and `NoWorkerNotice`, the warning that what waits on a file waits for a worker.

Must not know: files, engines. Invariants: a ring that meets no waiter is not kept; a waiter that is cancelled takes
no ring from the others.
"""

from __future__ import annotations

import asyncio
import logging
import time


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
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next ring."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.waiters is None:
            self.waiters = [waiter]
        else:
            self.waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if self.waiters and waiter in self.waiters:
                self.waiters.remove(waiter)
            raise


_log = logging.getLogger("hourglass")

SILENCE = 3.0
"""How long a request may wait for an owner before the log says that there is none."""


class TimedBell:
    """A `Bell` whose `wait` ends at a limit, too."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all waiters."""
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, limit: float) -> None:
        """Wait for the next ring, but no longer than this."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        timer = loop.call_later(limit, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class NoWorkerNotice:
    """Says, once for each absence, that what waits on a file waits for a worker."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._said = False

    @staticmethod
    def begin() -> float:
        """A wait begins."""
        return time.monotonic()

    def owner_seen(self) -> None:
        """There is an owner: its next absence is worth a word again."""
        self._said = False

    def look(self, since: float) -> None:
        """A request that began to wait at `since` still waits: say so if it has been long enough."""
        if not self._said and time.monotonic() - since >= SILENCE:
            self._said = True
            _log.warning(
                "no worker is running on %s: what waits goes on when one starts, in this process or another "
                '(Worker(Client.connect("local:%s"), workflows=[…], activities=[…]).run())',
                self._path,
                self._path,
                extra={"unserved_file": self._path},  # so that the command line can say it in its own words
            )
