"""Fixtures: a file for several processes, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import Client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a file that does not exist yet."""
    return tmp_path / "orders.db"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    """A client of the file, in the process of the test."""
    with Client.connect(f"local:{path}") as connected:
        yield connected
