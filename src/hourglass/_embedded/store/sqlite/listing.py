"""Lists of runs that are kept in memory, with the same index and filters as for a file. Used by stores without queries
of their own, and for the engine's schedules.

Must not know: the owner of the runs. Invariant: a list shows the runs in their state at the time when the list is
returned.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

from hourglass._contract.workflows import Count, Page
from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite import visibility
from hourglass._embedded.store.sqlite.list_reader import ListReader, is_interrupted
from hourglass._embedded.transitions.run import Run

T = TypeVar("T")

PORTION = 256
"""The number of runs that are added to the index at a time."""

LOOP_INSTRUCTIONS = 200_000
"""The number of SQLite instructions that a query may execute on the control loop: a few milliseconds."""


class MemoryListing:
    """Lists the runs of a table whose owner calls `changed` for each change.

    The index is created at the first query: most engines in memory belong to tests that never list runs, and until then
    a change costs only a dictionary entry. `types` are search attributes that exist before their first use, with
    Temporal's type names. On virtual time a query is answered immediately. On `real_time` only short queries run on the
    control loop, all others on a thread (`list_reader`).
    """

    def __init__(
        self, runs: Mapping[str, Run], types: Mapping[str, str] | None = None, *, real_time: bool = False
    ) -> None:
        self._runs = runs
        self._real_time = real_time
        self._types = types or {}
        self._changed: dict[str, None] = dict.fromkeys(runs)
        self._connection: sqlite3.Connection | None = None
        self._reader: ListReader | None = None

    def changed(self, run_id: str) -> None:
        """Record that a run of the table was added, changed or removed."""
        self._changed[run_id] = None

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        return await self._ask(lambda connection: visibility.page(connection, text, token, limit, activities))

    async def count(self, text: str, *, activities: bool = False) -> Count:
        return await self._ask(lambda connection: visibility.count(connection, text, activities))

    def close(self) -> None:
        """Close the index. The next query creates it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._connection is not None:
            with NO_FORK.lock:
                self._connection.close()
            self._connection = None
            self._changed = dict.fromkeys(self._runs)

    async def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        reader = self._reader
        if not self._real_time:
            return self._run_now(work)
        if len(self._changed) <= PORTION and (reader is None or not reader.is_busy):
            try:
                return self._run_now(work)
            except sqlite3.OperationalError as error:
                if not is_interrupted(error):
                    raise
        if reader is None:
            reader = self._reader = ListReader("the engine in memory", self._index, lambda _: None)
        return await reader.ask(lambda connection: work(self._update_index(connection)))

    def _run_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with NO_FORK.lock:
            connection = self._update_index(self._index())
            if self._real_time:
                connection.set_progress_handler(lambda: True, LOOP_INSTRUCTIONS)
            try:
                return work(connection)
            finally:
                connection.set_progress_handler(None, 0)

    def _index(self) -> sqlite3.Connection:
        connection = self._connection
        if connection is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.executescript(visibility.SCHEMA)
            visibility.declare(connection, self._types)
            self._connection = connection
        return connection

    def _update_index(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Write pending changes to the index, in portions. The control loop may record further changes meanwhile."""
        waiting = iter(list(self._changed))
        while portion := list(islice(waiting, PORTION)):
            for run_id in portion:
                # Removed before the run is read, so that a later change is recorded again.
                self._changed.pop(run_id, None)
            entries = [(run_id, self._runs.get(run_id)) for run_id in portion]
            try:
                visibility.write(connection, [run for _, run in entries if run is not None])
                visibility.remove(connection, [run_id for run_id, run in entries if run is None])
            except BaseException:  # interrupted: the next query writes these runs
                self._changed |= dict.fromkeys(portion)
                raise
        return connection
