"""Fixtures: a store in a new folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.stores import open_sqlite

from hourglass._embedded.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a file that may not exist yet."""
    return tmp_path / "runs.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[Callable[..., Store]]:
    """Opens stores, by default on the same file, and closes them at the end."""
    opened: list[Store] = []

    def open_(where: Path | None = None, **options: Any) -> Store:
        store = open_sqlite(where or path, **options)
        opened.append(store)
        return store

    yield open_
    for store in reversed(opened):
        store.close()
