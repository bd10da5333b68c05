"""The fixture `world` of coroutine tests: an engine in memory and its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from asynchronous import TIME_LIMIT, run_coroutine_test
from hourglass._embedded.store.store import Store

from .memory_world import World
from .stores import memory_store


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop on which a test with a `world` runs."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def store() -> Store:
    """The store of `world`; a module may override it."""
    return memory_store()


@pytest.fixture
def world(runner: asyncio.Runner, store: Store) -> Iterator[World]:
    """An engine on a virtual clock, with a worker."""
    world = runner.run(World.new(store=store))
    yield world
    runner.run(world.close())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test on the loop of its `world`, and close the worlds that it has opened."""
    runner = pyfuncitem.funcargs.get("runner")

    def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TIME_LIMIT):
                await World.closing(test())

        asyncio.run(limited()) if runner is None else runner.run(limited())

    return run_coroutine_test(pyfuncitem, run)
