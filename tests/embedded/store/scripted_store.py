"""A store controlled by the test: changes become durable on request, and it may fail or crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.embedded.stores import memory_store

from hourglass._embedded.store.store import (
    Rejection,
    RunChange,
    ScheduleChange,
    Store,
)
from hourglass.errors import StorageError


class ScriptedStore:
    """Implements `Store`. `disk` is what a crash leaves."""

    patience = 0.0

    def __init__(self, disk: Store | None = None) -> None:
        self.disk = memory_store() if disk is None else disk
        self.queue: list[RunChange | ScheduleChange] = []
        self.appended: list[RunChange | ScheduleChange] = []
        self.committed = 0
        self.commits = 0
        self.refusal = ""
        self.failure: StorageError | None = None
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._callbacks: set[asyncio.Future[None]] = set()

    # --- the test's part ------------------------------------------------------------------------------------

    def commit(self, count: int | None = None) -> int:
        """Make `count` changes durable, or all. Return their number."""
        done = self.queue[: len(self.queue) if count is None else count]
        del self.queue[: len(done)]
        for change in done:
            self.disk.append(change)
        self.committed += len(done)
        self.commits += bool(done)
        for number, waiter in self._waiters:
            if number <= self.committed and not waiter.done():
                waiter.set_result(None)
        return len(done)

    def die(self, message: str = "the disk is gone") -> None:
        """Fail all pending and later changes."""
        self.failure = StorageError(message)
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(StorageError(message))

    # --- the engine's part ----------------------------------------------------------------------------------

    @property
    def latest_ns(self) -> int:
        return self.disk.latest_ns

    held = ""

    def start_rejection(self) -> str:
        return self.refusal

    def append(self, change: RunChange | ScheduleChange) -> int:
        self.queue.append(change)
        self.appended.append(change)
        return len(self.appended)

    def on_rejection(self, callback: Callable[[Rejection], None]) -> None:
        pass

    def is_durable(self, number: int) -> bool:
        return number <= self.committed

    async def durable(self, number: int) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.is_durable(number):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((number, waiter))
            await waiter

    def when_durable(self, number: int, callback: Callable[[StorageError | None], object]) -> None:
        waiter = asyncio.ensure_future(self.durable(number))
        self._callbacks.add(waiter)
        waiter.add_done_callback(lambda done: (self._callbacks.discard(waiter), callback(done.exception())))

    def close(self) -> None:
        if self.failure is None:
            self.commit()
        self.disk.close()

    def __getattr__(self, name: str) -> Any:
        """Read from the disk."""
        if self.failure is not None:
            raise self.failure
        return getattr(self.disk, name)
