"""Execution of tests that are coroutine functions: each on a new event loop, with a time limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

TIME_LIMIT = 60.0
"""In seconds."""

CoroutineTest = Callable[[], Coroutine[Any, Any, None]]


def run_on_new_loop(test: CoroutineTest) -> None:
    """Run a test on a new event loop; fail if it exceeds the limit."""

    async def limited() -> None:
        async with asyncio.timeout(TIME_LIMIT):
            await test()

    asyncio.run(limited())


def run_coroutine_test(
    item: pytest.Function, run: Callable[[CoroutineTest], None] = run_on_new_loop
) -> bool | None:
    """Run a test if it is a coroutine function; called by the hook `pytest_pyfunc_call` of a `conftest.py`."""
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    run(lambda: test(**arguments))
    return True
