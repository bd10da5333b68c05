"""`async with Environment()`, and environments in threads and processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import AsyncWorkflowHandle
from hourglass.errors import ExplorationFailed, UsageError, WorkflowParked, WorkflowStuck
from hourglass.testing import AsyncEnvironment, Environment, call

from . import explored
from .shop import Order, always_fails, approval, buggy, charge, checkout, decisions

ROOT = Path(__file__).parents[2]
ORDER = Order("o-1", 1200)


async def test_async_environment_has_the_methods_of_the_blocking_one() -> None:
    async with Environment() as env:
        assert isinstance(env, AsyncEnvironment)
        before = env.now()
        env.fake(charge, returns="c-1", takes=60)
        handle = await env.start_workflow(checkout, ORDER)
        assert isinstance(handle, AsyncWorkflowHandle)
        await env.skip(minutes=2)
        assert env.calls(charge) == [call("o-1", 1200)]
        await env.crash()
        assert await handle.result() == "c-1"
        assert env.now() - before == timedelta(days=30, minutes=1)
        waiting = await env.start_workflow(approval, "a")
        env.after(days=1).signal(waiting, decisions, "yes")
        assert await waiting.result() == "a: yes"
        assert await env.execute_workflow(checkout, ORDER) == "c-1"
        assert len([summary async for summary in env.client.list_workflows()]) == 3


async def test_parked_and_stuck_runs_raise_where_they_are_awaited() -> None:
    async with Environment() as env:
        with pytest.raises(WorkflowParked):
            await env.execute_workflow(buggy)
        with pytest.raises(WorkflowStuck):
            await env.execute_workflow(approval, "a")


async def test_async_environment_does_not_block_the_loop_and_survives_a_cancelled_wait() -> None:
    started, release = threading.Event(), threading.Event()

    def slow(order_id: str, cents: int = 0) -> str:
        started.set()
        release.wait()
        return "late"

    async with Environment() as env:
        env.fake(charge, slow)
        waiting = asyncio.create_task(env.execute_workflow(checkout, ORDER))
        await asyncio.to_thread(started.wait)
        waiting.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        env.fake(charge, returns="c-2")
        assert await env.execute_workflow(checkout, ORDER) == "c-2"


async def test_async_environment_misuse_is_rejected() -> None:
    with pytest.raises(UsageError, match="async with"):
        Environment().open()
    async with Environment() as env:
        handle = await env.start_workflow(approval, "a")
    with pytest.raises(UsageError, match="closed"):
        await env.execute_workflow(always_fails)
    with pytest.raises(UsageError, match="closed"):
        await handle.result()


def test_environment_used_from_another_thread_is_rejected() -> None:
    problems: list[BaseException] = []
    results: list[str] = []

    with Environment() as env:

        def elsewhere() -> None:
            try:
                env.execute_workflow(always_fails)
            except BaseException as error:
                problems.append(error)
            with Environment() as own:
                results.append(own.execute_workflow(checkout, ORDER))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert [type(problem) for problem in problems] == [UsageError]
    assert "another" in str(problems[0])
    assert results == ["charged o-1"]


def test_hourglass_env_fixture_is_an_open_environment(hourglass_env: Environment) -> None:
    assert hourglass_env.execute_workflow(checkout, ORDER) == "charged o-1"


async def test_hourglass_async_env_fixture_is_an_async_environment(
    hourglass_async_env: AsyncEnvironment,
) -> None:
    assert await hourglass_async_env.execute_workflow(checkout, ORDER) == "charged o-1"


@pytest.fixture(scope="session")
def shared_env() -> Any:
    with Environment() as env:
        yield env


@pytest.mark.parametrize("number", range(3))
def test_session_scoped_environment_serves_several_tests(shared_env: Environment, number: int) -> None:
    @workflow.defn
    def local() -> int:
        workflow.sleep(60)
        return number

    with Environment() as inner:
        assert shared_env.execute_workflow(local) == number
        assert inner.execute_workflow(local) == number


PROGRAM = """
import os, sys
from tests.testing.shop import Order, checkout
from hourglass.testing import Environment

def once():
    with Environment() as env:
        return env.execute_workflow(checkout, Order("a", 1))

assert once() == "charged a"
child = os.fork()
if child == 0:
    os._exit(0 if once() == "charged a" else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
with Environment() as env:
    env.start_workflow(checkout, Order("a", 1))
    print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_forked_process_can_use_its_own_environment() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


async def test_async_environment_explores_orders() -> None:
    def prepare(env: Environment) -> None:
        env.fake(explored.charge, lambda order_id: f"charge-{order_id}")
        for item in (explored.ship, explored.refund):
            env.fake(item)
        env.cannot_fail(explored.refund)
        env.cannot_fail(explored.charge)

    def check(result: object, env: Environment) -> None:
        charged = any(call.returned for call in env.calls(explored.charge))
        assert not (isinstance(result, Exception) and charged) or env.calls(explored.refund), "not refunded"

    async with Environment() as env:
        report = await env.explore(explored.saga, "o-1", runs=40, seed=1, prepare=prepare, check=check)
        assert report.orders > 1
        with pytest.raises(ExplorationFailed, match="not refunded"):
            await env.explore(
                explored.saga_without_refund_after_timeout, "o-1", seed=1, prepare=prepare, check=check
            )
