"""Lists of runs that are kept in memory: the same index as a file's, made when it is first asked for.

Must not know: who keeps the runs. Most engines in memory are those of tests, which never list: until somebody
does, a change costs one entry in a table. Invariant: an answer is about the runs as they are when it is given.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from hourglass._bridge.service import CountGroup, Page
from hourglass._embedded.rules.run import Run
from hourglass._embedded.stores import visibility
from hourglass._embedded.stores.standstill import WORK


class MemoryListing:
    """Lists the runs of a table that somebody else keeps and tells us of."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self._runs = runs
        self._changed: dict[str, None] = dict.fromkeys(runs)
        self._connection: sqlite3.Connection | None = None

    def changed(self, run_id: str) -> None:
        """A run of the table is new, or changed, or gone."""
        self._changed[run_id] = None

    def page(self, text: str, token: bytes, limit: int) -> Page:
        """Runs that pass a filter, in the order of lists, from where another page ended."""
        with WORK:
            return visibility.page(self._current(), text, token, limit)

    def count(self, text: str) -> int:
        """How many runs pass a filter."""
        with WORK:
            return visibility.count(self._current(), text)

    def groups(self, text: str) -> tuple[CountGroup, ...]:
        """How many runs pass a filter in each of its groups, if it has any."""
        with WORK:
            return visibility.groups(self._current(), text)

    def close(self) -> None:
        """Let go of the index; it is made anew if somebody asks again."""
        if self._connection is not None:
            with WORK:
                self._connection.close()
            self._connection = None
            self._changed = dict.fromkeys(self._runs)

    def _current(self) -> sqlite3.Connection:
        connection = self._connection
        if connection is None:
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.executescript(visibility.SCHEMA)
            self._connection = connection
        changed, self._changed = self._changed, {}
        visibility.write(connection, [self._runs[run_id] for run_id in changed if run_id in self._runs])
        visibility.remove(connection, [run_id for run_id in changed if run_id not in self._runs])
        return connection
