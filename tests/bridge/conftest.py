"""After each test: nothing was done to a scripted engine that a real one does not forgive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .scripted import VIOLATIONS


@pytest.fixture(autouse=True)
def _no_violations() -> Iterator[None]:
    VIOLATIONS.clear()
    yield
    assert VIOLATIONS == []
