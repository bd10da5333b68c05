"""After each test: nothing was done to a scripted engine that a real one does not forgive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asynchronous import run_coroutine_test

from .scripted import VIOLATIONS, ScriptedEngine, ScriptedHandle, SlowScriptedHandle
from .virtual_loop import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine functions on virtual time."""
    return run_coroutine_test(pyfuncitem, run)


@pytest.fixture(autouse=True)
def _no_violations() -> Iterator[None]:
    VIOLATIONS.clear()
    yield
    assert VIOLATIONS == []


@pytest.fixture(params=[ScriptedHandle, SlowScriptedHandle], ids=["at once", "later"])
def both_kinds_of_handles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test holds for handles of both kinds."""
    monkeypatch.setattr(ScriptedEngine, "handle_type", request.param)
