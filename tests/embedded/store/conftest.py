"""A store in a fresh folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hourglass._embedded.store.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is, or will be."""
    return tmp_path / "runs.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[..., SqliteStore]]:
    """Opens stores, by default on the same file, and closes them in the end."""
    opened: list[SqliteStore] = []

    def open_(where: Path | None = None, **options: Any) -> SqliteStore:
        store = SqliteStore.open(where or path, **options)
        opened.append(store)
        return store

    yield open_
    for store in reversed(opened):
        store.close()
