"""The reads of a file (`FileReads`), which the durable store shares with the store of a file that can only be read now, for
want of room on its disk (`ReadOnlyStore`): questions are answered, nothing is changed.

Must not know: clients, requests. The caller has the file's lock. Invariant of the latter: no change ever becomes
durable; a call that waits for one raises why.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence

from hourglass._contract.workflows import Count, Page
from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.search_attributes import AttributeType
from hourglass._embedded.store.sqlite import database, inherited, records, visibility
from hourglass._embedded.store.sqlite.disk_faults import storage_errors
from hourglass._embedded.store.sqlite.list_reader import ListReader
from hourglass._embedded.store.store import (
    LAST_KEY,
    Change,
    DiskCondition,
    DueRun,
    Refusal,
    ScheduleChange,
    ScheduleEntry,
    Stored,
)
from hourglass.errors import StorageError


class FileReads:
    """The reads of `Store`, on a connection of the control loop; lists and counts on threads of their own."""

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
        """About the time of the newest event when the file was opened: time goes on from there."""
        self._lists = ListReader(path, connect_lists, inherited.close, threads=lists_at_once)

    def _reading(self) -> threading.RLock:
        """What every read is done inside of; raises `StorageError` if nothing can be read any more."""
        return NO_FORK.lock

    def load(self, run_id: str) -> Stored | None:
        """A run that is not in memory."""
        with self._reading():
            return self._reads.load(run_id)

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow; empty if there is none."""
        with self._reading():
            return self._reads.current(workflow_id)

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """The run id of the latest run of a workflow that carried out a request; empty if none did."""
        with self._reading():
            return self._reads.find_request(workflow_id, request_id)

    def due(
        self, until_ns: int, limit: int, after_ns: int = 0, after_key: int = LAST_KEY
    ) -> Sequence[DueRun]:
        """Runs whose wake time has come, earliest first, from behind a place."""
        with self._reading():
            return self._reads.due(until_ns, limit, after_ns, after_key)

    def without_wake(self) -> Sequence[str]:
        """Runs whose wake time is damaged: they must be looked at now, for they would never be due."""
        with self._reading():
            return self._reads.without_wake()

    def open_runs(self) -> int:
        """How many runs are open."""
        with self._reading():
            return self._reads.open_runs()

    def next_due_ns(self, after_ns: int = 0) -> int:
        """The earliest wake time later than `after_ns`; 0 if there is none."""
        with self._reading():
            return self._reads.next_due_ns(after_ns)

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        """Runs that pass a filter, newest first, from where another page ended."""
        self._reading()
        return await self._lists.ask(
            lambda connection: visibility.page(connection, text, token, limit, activities)
        )

    async def count(self, text: str, *, activities: bool = False) -> Count:
        """How many runs pass a filter, and in each of its groups, if it has any."""
        self._reading()
        return await self._lists.ask(lambda connection: visibility.count(connection, text, activities))

    def attribute_types(self) -> dict[str, AttributeType]:
        """The search attributes that are known, and their types."""
        with self._reading(), storage_errors(self.path):
            return visibility.types(self._reads.connection)

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        """A schedule that is not in memory."""
        with self._reading(), storage_errors(self.path):
            return records.read(self._reads.connection, schedule_id)

    def note(self, name: str) -> bytes:
        """What the engine keeps for itself under a name; empty if there is nothing."""
        with self._reading(), storage_errors(self.path):
            return records.read_note(self._reads.connection, name)

    def notes(self, prefix: str) -> Sequence[tuple[str, bytes]]:
        """All that the engine keeps for itself under names that begin so."""
        with self._reading(), storage_errors(self.path):
            return records.read_notes(self._reads.connection, prefix)

    def schedules(self) -> Sequence[ScheduleEntry]:
        """All schedules, in short."""
        with self._reading(), storage_errors(self.path):
            return records.read_entries(self._reads.connection)


class ReadOnlyStore(FileReads):
    """Implements `Store`. `why` is what keeps the file from being written."""

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

    def refuses_starts(self) -> str:
        """Why new workflows are refused."""
        return self.held

    def condition(self) -> DiskCondition | None:
        """Not known: no process owns the file."""
        return None

    def append(self, change: Change | ScheduleChange) -> int:
        """Number a change, which is not kept."""
        self._number += 1
        return self._number

    def on_refusal(self, told: Callable[[Refusal], None]) -> None:
        """Nothing is written, so nothing is refused."""

    def is_durable(self, number: int) -> bool:
        """Whether this change is durable: none is."""
        return number <= 0

    async def durable(self, number: int) -> None:
        """Raise why it is not."""
        if number > 0:
            raise StorageError(self.held, status=self._status)

    def when_durable(self, number: int, told: Callable[[StorageError | None], object]) -> None:
        """Say why it is not."""
        error = StorageError(self.held, status=self._status) if number > 0 else None
        asyncio.get_running_loop().call_soon(told, error)

    def forget(self, run_id: str) -> int:
        """Raise why nothing is forgotten."""
        raise StorageError(self.held, status=self._status)

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Nothing is forgotten."""
        return 0

    def close(self) -> None:
        """Let go. Safe to call twice."""
        self._lists.close()
        with NO_FORK.lock:
            inherited.close(self._reads.connection)
