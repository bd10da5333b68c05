"""A file that can only be read now, for want of room on its disk: questions are answered, nothing is changed.

Must not know: clients, requests. The caller has the file's lock. Invariant: no change ever becomes durable; a call
that waits for one raises why.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence

from hourglass._contract.service import CountGroup, Page
from hourglass._embedded.rules.schedules import Record as Schedule
from hourglass._embedded.store import database, fork_safety, records, visibility
from hourglass._embedded.store.disk_faults import storage_errors
from hourglass._embedded.store.filter_sql import AttributeType
from hourglass._embedded.store.fork_safety import WORK
from hourglass._embedded.store.list_reader import ListReader
from hourglass._embedded.store.records import StoredReads
from hourglass._embedded.store.store import Change, Refusal, ScheduleChange, ScheduleEntry, Stored
from hourglass.errors import StorageError


class ReadOnlyStore:
    """Implements `Store`. `why` is what keeps the file from being written."""

    patience = 0.0

    def __init__(self, path: str | os.PathLike[str], why: StorageError) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.held = str(why)
        self._status = why.status
        with WORK:
            self._connection = database.connect_unowned(self.path)
            self._reads = StoredReads(self._connection, self.path)
            try:
                self.latest_ns = self._reads.latest_ns()
            except BaseException:
                fork_safety.close(self._connection)
                raise
        self._lists = ListReader(self.path, self._connect_lists, fork_safety.close)
        self._number = 0

    def _connect_lists(self) -> sqlite3.Connection:
        return database.connect_unowned(self.path)

    def refuses_starts(self) -> str:
        """Why new workflows are refused."""
        return self.held

    def append(self, change: Change | ScheduleChange) -> int:
        """Number a change, which is not kept."""
        self._number += 1
        return self._number

    def is_durable(self, number: int) -> bool:
        """Whether this change is durable: none is."""
        return number <= 0

    async def durable(self, number: int) -> None:
        """Raise why it is not."""
        if number > 0:
            raise StorageError(self.held, status=self._status)

    def load(self, run_id: str) -> Stored | None:
        """A run."""
        with WORK:
            return self._reads.load(run_id)

    def current(self, workflow_id: str) -> str:
        """The run id of the latest run of a workflow; empty if there is none."""
        with WORK:
            return self._reads.current(workflow_id)

    def find_request(self, workflow_id: str, request_id: str) -> str:
        """The run id of the latest run of a workflow that carried out a request; empty if none did."""
        with WORK:
            return self._reads.find_request(workflow_id, request_id)

    def attribute_types(self) -> dict[str, AttributeType]:
        """The search attributes that are known, and their types."""
        with WORK, storage_errors(self.path):
            return visibility.types(self._connection)

    def on_refusal(self, told: Callable[[Refusal], None]) -> None:
        """Nothing is written, so nothing is refused."""

    def without_wake(self) -> Sequence[str]:
        """Runs whose wake time is damaged."""
        with WORK:
            return self._reads.without_wake()

    def due(self, until_ns: int, limit: int, after_ns: int = 0) -> Sequence[str]:
        """Runs whose wake time has come, earliest first."""
        with WORK:
            return self._reads.due(until_ns, limit, after_ns)

    def next_due_ns(self, after_ns: int = 0) -> int:
        """The earliest wake time later than `after_ns`; 0 if there is none."""
        with WORK:
            return self._reads.next_due_ns(after_ns)

    async def page(self, text: str, token: bytes, limit: int) -> Page:
        """Runs that pass a filter, newest first, from where another page ended."""
        return await self._lists.ask(lambda connection: visibility.page(connection, text, token, limit))

    async def count(self, text: str) -> int:
        """How many runs pass a filter."""
        return await self._lists.ask(lambda connection: visibility.count(connection, text))

    async def groups(self, text: str) -> tuple[CountGroup, ...]:
        """How many runs pass a filter in each of its groups, if it has any."""
        return await self._lists.ask(lambda connection: visibility.groups(connection, text))

    def schedule(self, schedule_id: str) -> Schedule | None:
        """A schedule."""
        with WORK, storage_errors(self.path):
            return records.read(self._connection, schedule_id)

    def note(self, name: str) -> bytes:
        """What the engine keeps for itself under a name; empty if there is nothing."""
        with WORK, storage_errors(self.path):
            return records.read_note(self._connection, name)

    def schedules(self) -> Sequence[ScheduleEntry]:
        """All schedules, in short."""
        with WORK, storage_errors(self.path):
            return records.read_entries(self._connection)

    def forget_closed(self, before_ns: int, limit: int) -> int:
        """Nothing is forgotten."""
        return 0

    def close(self) -> None:
        """Let go. Safe to call twice."""
        self._lists.close()
        with WORK:
            fork_safety.close(self._connection)
