"""Fixtures of the supervision tree's tests.

After each test no lane or activity thread and no Application may be left, and no rule of a real engine may be
broken.
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
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(_OURS)]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine functions as scripts, after which no task may be left."""
    return run_coroutine_test(pyfuncitem, play)


@pytest.fixture(autouse=True)
def _check_leftovers() -> Iterator[None]:
    stage.__init__()  # type: ignore[misc]
    VIOLATIONS.clear()
    before = set(_threads())
    yield
    stage.go.set()
    until(lambda: not set(_threads()) - before, "threads are left", limit=10)
    assert VIOLATIONS == []
    assert not _worker._applications
