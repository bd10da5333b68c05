"""Tests that are coroutine functions: each runs on an event loop of its own, within a limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

LIMIT = 60.0
"""The time that a test may take, in seconds."""


def run_on_new_loop(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a new loop; one that is stuck fails."""

    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await test()

    asyncio.run(limited())


def run_coroutine_test(
    item: pytest.Function, run: Callable[[Callable[[], Awaitable[None]]], None] = run_on_new_loop
) -> bool | None:
    """Run a test if it is a coroutine function; for the hook `pytest_pyfunc_call` of a `conftest.py`."""
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    run(lambda: test(**arguments))
    return True
