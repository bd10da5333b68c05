"""The conformance suite for the store in memory and the store in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.embedded.stores import memory_store, open_sqlite

from hourglass._embedded.store.store import Store

from .store_conformance import CHECKS, Check, Place


class InMemory:
    """One store, which keeps its data when it is closed."""

    def __init__(self) -> None:
        self._store = memory_store()

    def open(self) -> Store:
        return self._store


class InFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> Store:
        return open_sqlite(self._path)


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_store_passes_conformance_check(check: Check, kind: str, tmp_path: Path) -> None:
    place: Place = InMemory() if kind == "memory" else InFile(tmp_path / "a.db")

    await check(place)
