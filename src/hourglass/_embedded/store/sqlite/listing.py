"""Lists of runs that are kept in memory, over the same index and filters as a file's. Any store that has no queries of its own
can use it, and so does the engine for its schedules.

Must not know: who keeps the runs. Invariant: a list is about the runs as they are when it is given.
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

FEW = 256
"""So many runs are entered into the index at once."""

LITTLE = 200_000
"""So many of SQLite's instructions, a few milliseconds, are spent on the control loop."""


class MemoryListing:
    """Lists the runs of a table that its owner keeps, calling `changed` for each change. The index is made at the
    first question: most engines in memory are those of tests, which never list, and until then a change costs one
    entry in a table.

    `types` are the search attributes that are known before their first use, by Temporal's names of types. On virtual
    time a list takes no time: it is answered at once. On `real_time` only what is small is answered on the control
    loop; all else is left to a thread (`list_reader`).
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
        """A run of the table is new, or changed, or gone."""
        self._changed[run_id] = None

    async def page(self, text: str, token: bytes, limit: int, *, activities: bool = False) -> Page:
        """Runs that pass a filter, in the order of lists, from where another page ended."""
        return await self._ask(lambda connection: visibility.page(connection, text, token, limit, activities))

    async def count(self, text: str, *, activities: bool = False) -> Count:
        """How many runs pass a filter, and in each of its groups, if it has any."""
        return await self._ask(lambda connection: visibility.count(connection, text, activities))

    def close(self) -> None:
        """Let go of the index; it is made anew at the next question."""
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
            return self._at_once(work)
        if len(self._changed) <= FEW and (reader is None or not reader.is_busy):
            try:
                return self._at_once(work)
            except sqlite3.OperationalError as error:
                if not is_interrupted(error):
                    raise
        if reader is None:
            reader = self._reader = ListReader("the engine in memory", self._index, lambda _: None)
        return await reader.ask(lambda connection: work(self._up_to_date(connection)))

    def _at_once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with NO_FORK.lock:
            connection = self._up_to_date(self._index())
            if self._real_time:
                connection.set_progress_handler(lambda: True, LITTLE)
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

    def _up_to_date(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Enter what has changed, a portion at a time. The control loop may note further changes meanwhile."""
        waiting = iter(list(self._changed))
        while portion := list(islice(waiting, FEW)):
            for run_id in portion:
                # Before it is looked at: what changes from now on is noted again.
                self._changed.pop(run_id, None)
            found = [(run_id, self._runs.get(run_id)) for run_id in portion]
            try:
                visibility.write(connection, [run for _, run in found if run is not None])
                visibility.remove(connection, [run_id for run_id, run in found if run is None])
            except BaseException:  # interrupted: the next question enters them
                self._changed |= dict.fromkeys(portion)
                raise
        return connection
