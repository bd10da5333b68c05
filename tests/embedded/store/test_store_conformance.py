"""Every store keeps what the engine relies on: the one in memory, and the one in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.embedded.stores import memory_store, open_sqlite

from hourglass._embedded.store.store import Store

from .store_conformance import CHECKS, Check, Place


class InMemory:
    """One store, which stays when it is closed."""

    def __init__(self) -> None:
        self._store = memory_store()

    def open(self) -> Store:
        return self._store


class InFile:
    """A file, opened anew each time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> Store:
        return open_sqlite(self._path)


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_store_passes_conformance_check(check: Check, kind: str, tmp_path: Path) -> None:
    """Each check of the suite, on each store."""
    place: Place = InMemory() if kind == "memory" else InFile(tmp_path / "a.db")

    await check(place)
