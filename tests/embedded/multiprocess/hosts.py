"""Hosts of one file on one event loop: each is the part of a process that opened the file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hourglass._embedded.multiprocess import following, owning
from hourglass._embedded.multiprocess.shared_file import SharedFile
from hourglass._embedded.store.sqlite.store import SQLITE


def host(path: Path) -> SharedFile:
    """Return a host of a SQLite file."""
    return SharedFile(SQLITE, str(path), "default")


@asynccontextmanager
async def hosts(path: Path, number: int) -> AsyncIterator[list[SharedFile]]:
    """Yield hosts of a file and close them."""
    opened = [host(path) for _ in range(number)]
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()


def look_every(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the interval at which hosts check whether the owner of their file lives."""
    for module in (owning, following):
        monkeypatch.setattr(module, "CHECK_INTERVAL", seconds)
