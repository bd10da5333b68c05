"""Before each test: an empty stage. After each test: no thread of a lane or an activity is left, no Application is remembered,
and nothing was done to a scripted engine that a real one does not forgive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from bridge.scripted import VIOLATIONS
from hourglass.worker import _worker

from .world import stage

_OURS = ("hourglass-lane", "hourglass-activity")


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(_OURS)]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    stage.__init__()  # type: ignore[misc]
    VIOLATIONS.clear()
    before = set(_threads())
    yield
    stage.go.set()
    deadline = time.monotonic() + 10
    while set(_threads()) - before and time.monotonic() < deadline:
        time.sleep(0.001)  # they are told and end; nobody else waits for them
    assert set(_threads()) - before == set()
    assert VIOLATIONS == []
    assert not _worker._applications
