"""A store controlled by the test: changes become durable on request, and it may fail or crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tests.embedded.stores import memory_store

from hourglass._contract.engine_status import DiskCondition
from hourglass._contract.workflows import Count, Page
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.store.store import (
    LAST_KEY,
    DueRun,
    Rejection,
    RunChange,
    ScheduleChange,
    ScheduleEntry,
    Store,
    Stored,
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

    @property
    def held(self) -> str:
        return ""

    def start_rejection(self) -> str:
        return self.refusal

    def condition(self) -> DiskCondition | None:
        return None

    def attribute_types(self) -> Mapping[str, AttributeType]:
        return self._readable().attribute_types()

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

    def load(self, run_id: str) -> Stored | None:
        return self._readable().load(run_id)

    def current(self, workflow_id: str) -> str:
        return self._readable().current(workflow_id)

    def find_request(self, workflow_id: str, request_id: str) -> str:
        return self._readable().find_request(workflow_id, request_id)

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        return self._readable().due(until_ns, limit, after_ns, after_key)

    def without_wake(self) -> Sequence[str]:
        return ()

    def open_runs(self) -> int:
        return self._readable().open_runs()

    def next_due_ns(self, after_ns: int = 0) -> int:
        return self._readable().next_due_ns(after_ns)

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        return await self._readable().page(text, token, limit, activities=activities)

    async def count(self, text: str, *, activities: bool = False) -> Count:
        return await self._readable().count(text, activities=activities)

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        return self._readable().schedule(schedule_id)

    def schedules(self) -> Sequence[ScheduleEntry]:
        return self._readable().schedules()

    def note(self, name: str) -> bytes:
        return self._readable().note(name)

    def notes(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        return self._readable().notes(prefix)

    def forget(self, run_id: str) -> int:
        return self._readable().forget(run_id)

    def forget_closed(self, before_ns: int, limit: int) -> int:
        return self._readable().forget_closed(before_ns, limit)

    def close(self) -> None:
        if self.failure is None:
            self.commit()
        self.disk.close()

    def _readable(self) -> Store:
        if self.failure is not None:
            raise self.failure
        return self.disk
