"""Before each test: an empty stage. After each test: no thread of a lane or an activity is left, no Application is remembered,
and nothing was done to a scripted engine that a real one does not forgive.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.waiting import until

from asynchronous import run_coroutine_test
from hourglass.worker import _worker
from worker.handles.scripted import VIOLATIONS

from .world import play, stage

_OURS = ("hourglass-lane", "hourglass-activity")


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(_OURS)]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine functions as scripts, after which no task is left."""
    return run_coroutine_test(pyfuncitem, play)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    stage.__init__()  # type: ignore[misc]
    VIOLATIONS.clear()
    before = set(_threads())
    yield
    stage.go.set()
    until(lambda: not set(_threads()) - before, "threads are left", limit=10)
    assert VIOLATIONS == []
    assert not _worker._applications
