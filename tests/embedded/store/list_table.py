"""The table behind workflow lists, in a SQLite database in memory."""

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
    """The list table, initially empty."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:")
        self.database.executescript(visibility.SCHEMA)

    def write(self, runs: Iterable[Run]) -> None:
        visibility.write(self.database, list(runs))

    def remove(self, run_ids: Iterable[str]) -> None:
        visibility.remove(self.database, list(run_ids))

    def declare(self, types: Mapping[str, str]) -> None:
        visibility.declare(self.database, dict(types))

    def page(self, text: str, token: bytes, limit: int) -> Page:
        return visibility.page(self.database, text, token, limit)

    def count(self, text: str) -> Count:
        return visibility.count(self.database, text)

    def where(self, text: str) -> Any:
        """Return a filter as SQL and its bound values."""
        return statement(filters.parse(text), visibility.types(self.database))
