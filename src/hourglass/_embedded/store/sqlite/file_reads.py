"""The read methods for a file (`FileReads`), shared by the durable store and by `ReadOnlyStore`, the store for a file
that can only be read because the disk is full.

Must not know: clients, requests. The caller must have the file's lock. Invariant of `ReadOnlyStore`: no change ever
becomes durable; a call that waits for a change raises the error that prevents writing.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

from hourglass._contract.engine_status import DiskCondition
from hourglass._contract.workflows import Count, Page
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.store.sqlite import database, inherited, records, visibility
from hourglass._embedded.store.sqlite.disk_faults import storage_errors
from hourglass._embedded.store.sqlite.list_reader import ListReader
from hourglass._embedded.store.store import (
    Rejection,
    RunChange,
    ScheduleChange,
)
from hourglass.errors import StorageError


class FileReads(records.StoredReads):
    """The read methods of `Store`, on a connection of the control loop; lists and counts run on separate threads."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        connect_lists: Callable[[], sqlite3.Connection],
        *,
        lists_at_once: int = 1,
    ) -> None:
        super().__init__(connection, path)
        self.latest_ns = self.newest_event_ns()
        """The approximate timestamp of the newest event when the file was opened."""
        self._lists = ListReader(path, connect_lists, inherited.close, threads=lists_at_once)

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        self._reading()
        return await self._lists.ask(
            lambda connection: visibility.page(connection, text, token, limit, activities)
        )

    async def count(self, text: str, *, activities: bool = False) -> Count:
        self._reading()
        return await self._lists.ask(lambda connection: visibility.count(connection, text, activities))

    def attribute_types(self) -> dict[str, AttributeType]:
        with self._reading(), storage_errors(self.path):
            return visibility.types(self.connection)


class ReadOnlyStore(FileReads):
    """A `Store` that cannot write. `why` is the error that prevents writing."""

    patience = 0.0

    def __init__(self, path: str, why: StorageError) -> None:
        self.held = str(why)
        self._status = why.status
        self._number = 0
        with NO_FORK.lock:
            connection = database.connect_unowned(path)
            try:
                super().__init__(path, connection, lambda: database.connect_unowned(path))
            except BaseException:
                inherited.close(connection)
                raise

    def start_rejection(self) -> str:
        return self.held

    def condition(self) -> DiskCondition | None:
        """Return None: no process owns the file."""
        return None

    def append(self, change: RunChange | ScheduleChange) -> int:
        """Discard the change, and return a number for it."""
        self._number += 1
        return self._number

    def on_rejection(self, callback: Callable[[Rejection], None]) -> None:
        """Do nothing, because no change is written."""

    def is_durable(self, number: int) -> bool:
        """Return False for every change."""
        return number <= 0

    async def durable(self, number: int) -> None:
        """Raise the error that prevents writing, for any change."""
        if number > 0:
            raise StorageError(self.held, status=self._status)

    def when_durable(self, number: int, callback: Callable[[StorageError | None], object]) -> None:
        """Schedule `callback` with the error that prevents writing."""
        error = StorageError(self.held, status=self._status) if number > 0 else None
        asyncio.get_running_loop().call_soon(callback, error)

    def forget(self, run_id: str) -> int:
        """Raise the error that prevents writing."""
        raise StorageError(self.held, status=self._status)

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Delete nothing."""
        return 0

    def close(self) -> None:
        self._lists.close()
        with NO_FORK.lock:
            inherited.close(self.connection)
