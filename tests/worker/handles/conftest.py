"""Fixtures of the handle tests. After each test its holders are stopped, and no rule of a real engine may be broken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from asynchronous import run_coroutine_test

from .scripted import VIOLATIONS, WORLDS, ScriptedEngine, ScriptedHandle, SlowScriptedHandle
from .virtual_loop import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine functions on virtual time, then stop the holders of their worlds."""

    def run_and_stop(test: Callable[[], Awaitable[None]]) -> None:
        async def body() -> None:
            await test()
            for world in WORLDS:
                await world.holder.stop()

        run(body)

    return run_coroutine_test(pyfuncitem, run_and_stop)


@pytest.fixture(autouse=True)
def _no_violations() -> Iterator[None]:
    WORLDS.clear()
    VIOLATIONS.clear()
    yield
    assert VIOLATIONS == []


@pytest.fixture(params=[ScriptedHandle, SlowScriptedHandle], ids=["immediate", "delayed"])
def both_kinds_of_handles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with handles that accept completions immediately, and with handles that accept them later."""
    monkeypatch.setattr(ScriptedEngine, "handle_type", request.param)
