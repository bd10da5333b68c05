"""The stores of the embedded engine, as the engine opens them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.store.sqlite.store import SqliteStore
from hourglass._embedded.store.store import RunChange, ScheduleChange, Stored
from hourglass._embedded.transitions.run import Run
from hourglass.errors import StorageError


def open_sqlite(path: str | Path, **options: Any) -> SqliteStore:
    """Open a store in a SQLite file, which is created if it does not exist."""
    return SqliteStore.open(path, **options)


def memory_store() -> MemoryStore:
    return MemoryStore()


class Spoiled(SqliteStore):
    """A store that adds a number too large for SQLite to the changes for which `spoils` is true."""

    spoils: Callable[[Run], bool] = staticmethod(lambda _: False)

    def append(self, change: RunChange | ScheduleChange) -> int:
        return super().append(self._spoiled(change))

    def _spoiled(self, change: RunChange | ScheduleChange) -> RunChange | ScheduleChange:
        change = msgspec.structs.replace(change, also=tuple(map(self._spoiled, change.also)))
        if isinstance(change, RunChange) and self.spoils(change.run):
            change = msgspec.structs.replace(change, wake_ns=1 << 63)
        return change


class Noted(MemoryStore):
    """A store in memory that records every change."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[RunChange] = []

    def append(self, change: RunChange) -> int:
        self.changes.append(change)
        return super().append(change)


class Blind(MemoryStore):
    """A store in memory that cannot read `unreadable`."""

    unreadable: str = ""

    def load(self, run_id: str) -> Stored | None:
        if run_id and run_id == self.unreadable:
            raise StorageError("torn")
        return super().load(run_id)
