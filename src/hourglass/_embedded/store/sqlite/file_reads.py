"""The read methods for a file (`FileReads`), shared by the durable store and by `ReadOnlyStore`, the store for a file
that can only be read because the disk is full.

Must not know: clients, requests. The caller must have the file's lock. Invariant of `ReadOnlyStore`: no change ever
becomes durable; a call that waits for a change raises the error that prevents writing.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence

from hourglass._contract.engine_status import DiskCondition
from hourglass._contract.workflows import Count, Page
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.store.sqlite import database, inherited, records, visibility
from hourglass._embedded.store.sqlite.disk_faults import storage_errors
from hourglass._embedded.store.sqlite.list_reader import ListReader
from hourglass._embedded.store.store import (
    LAST_KEY,
    DueRun,
    Rejection,
    RunChange,
    ScheduleChange,
    ScheduleEntry,
    Stored,
)
from hourglass.errors import StorageError


class FileReads:
    """The read methods of `Store`, on a connection of the control loop; lists and counts run on separate threads."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        connect_lists: Callable[[], sqlite3.Connection],
        *,
        lists_at_once: int = 1,
    ) -> None:
        self.path = path
        self._reads = records.StoredReads(connection, path)
        self.latest_ns = self._reads.latest_ns()
        """The approximate timestamp of the newest event when the file was opened. The engine's clock continues from
        this time.
        """
        self._lists = ListReader(path, connect_lists, inherited.close, threads=lists_at_once)

    def _reading(self) -> threading.RLock:
        """Return the lock for a read. Raises `StorageError` if reading is no longer possible."""
        return NO_FORK.lock

    def load(self, run_id: str) -> Stored | None:
        """Load a run that is not in memory; None if the run does not exist."""
        with self._reading():
            return self._reads.load(run_id)

    def current(self, workflow_id: str) -> str:
        """Return the run id of the latest run of a workflow; empty if there is none."""
        with self._reading():
            return self._reads.current(workflow_id)

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """Return the run id of the latest run of a workflow that carried out a request; empty if none did."""
        with self._reading():
            return self._reads.find_request(workflow_id, request_id)

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        """Return due runs after a position, earliest first (see `Store.due`)."""
        with self._reading():
            return self._reads.due(until_ns, limit, after_ns, after_key)

    def without_wake(self) -> Sequence[str]:
        """Return the runs with a damaged wake time. They would never be due."""
        with self._reading():
            return self._reads.without_wake()

    def open_runs(self) -> int:
        """Return the number of open runs."""
        with self._reading():
            return self._reads.open_runs()

    def next_due_ns(self, after_ns: int = 0) -> int:
        """Return the earliest wake time later than `after_ns`; 0 if there is none."""
        with self._reading():
            return self._reads.next_due_ns(after_ns)

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        """Return one page of runs that match a filter, newest first."""
        self._reading()
        return await self._lists.ask(
            lambda connection: visibility.page(connection, text, token, limit, activities)
        )

    async def count(self, text: str, *, activities: bool = False) -> Count:
        """Count the runs that match a filter, in total and by group."""
        self._reading()
        return await self._lists.ask(lambda connection: visibility.count(connection, text, activities))

    def attribute_types(self) -> dict[str, AttributeType]:
        """Return the types of the search attributes in use."""
        with self._reading(), storage_errors(self.path):
            return visibility.types(self._reads.connection)

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        """Load a schedule that is not in memory; None if the schedule does not exist."""
        with self._reading(), storage_errors(self.path):
            return records.read(self._reads.connection, schedule_id)

    def note(self, name: str) -> bytes:
        """Return the engine's note with this name; empty if there is none."""
        with self._reading(), storage_errors(self.path):
            return records.read_note(self._reads.connection, name)

    def notes(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        """Return the engine's notes whose names begin with `prefix`."""
        with self._reading(), storage_errors(self.path):
            return records.read_notes(self._reads.connection, prefix)

    def schedules(self) -> Sequence[ScheduleEntry]:
        """Return a summary of each schedule."""
        with self._reading(), storage_errors(self.path):
            return records.read_entries(self._reads.connection)


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
        """Return the reason to reject new workflows."""
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
        """Close the connections. Safe to call twice."""
        self._lists.close()
        with NO_FORK.lock:
            inherited.close(self._reads.connection)
