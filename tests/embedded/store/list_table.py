"""The table behind lists of runs, in a SQLite database of its own in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from hourglass._contract.workflows import Count, Page
from hourglass._embedded.store import filters
from hourglass._embedded.store.sqlite import visibility
from hourglass._embedded.store.sqlite.filter_sql import statement
from hourglass._embedded.transitions.run import Run


class ListTable:
    """The table, empty at first."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.executescript(visibility.SCHEMA)

    def write(self, runs: Iterable[Run]) -> None:
        """Enter runs as they are now."""
        visibility.write(self.database, list(runs))

    def remove(self, run_ids: Iterable[str]) -> None:
        """Remove runs."""
        visibility.remove(self.database, list(run_ids))

    def declare(self, types: Mapping[str, str]) -> None:
        """Declare search attributes with their types."""
        visibility.declare(self.database, dict(types))

    def page(self, text: str, token: bytes, limit: int) -> Page:
        """Return a page of the runs that a filter finds."""
        return visibility.page(self.database, text, token, limit)

    def count(self, text: str) -> Count:
        """Count the runs that a filter finds."""
        return visibility.count(self.database, text)

    def where(self, text: str) -> Any:
        """Return a filter as SQL with its values."""
        return statement(filters.parse(text), visibility.types(self.database))
