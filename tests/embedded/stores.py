"""The stores of the embedded engine, as the engine opens them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.store.sqlite.store import SqliteStore


def open_sqlite(path: str | Path, **options: Any) -> SqliteStore:
    """Open a store in a SQLite file, which is created if it does not exist."""
    return SqliteStore.open(path, **options)


def memory_store() -> MemoryStore:
    """Return a store in memory."""
    return MemoryStore()
