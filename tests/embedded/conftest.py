"""The fixture `world` of coroutine tests: an engine in memory and its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

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
    """Run a coroutine test with a `world` on the loop of that world."""
    runner = pyfuncitem.funcargs.get("runner")
    if runner is None:
        return None

    def run(test: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(TIME_LIMIT):
                await test()

        runner.run(limited())

    return run_coroutine_test(pyfuncitem, run)
