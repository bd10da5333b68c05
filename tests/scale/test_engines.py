"""Large runs on the embedded engine: in an environment, where work is counted, and with a worker, where they finish."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hourglass import AsyncClient, Client, Worker
from hourglass.testing import Environment

from . import shapes
from .counting import Work, assert_flat

WORKFLOWS = (
    shapes.acting,
    shapes.sleeping,
    shapes.mapped,
    shapes.four_ways,
    shapes.in_line,
    shapes.reader,
    shapes.Handler,
)
EVENTS_OF_ONE = 3  # an activity: scheduled, started, completed


MOST_VERIFIED = 4
"""What a verified run may cost of one that is not: itself, once more at its close, and at its tasks 1, 2, 4, 8 … as much as
twice in all. How many tasks it takes, and so where in the last doubling it ends, is a matter of which activities end
together: between two sizes this is a step, not a slope."""


def _executed(workflow: Any, verify: Any, size: int) -> int:
    """Execute a workflow of so many activities in an environment; how many events they had."""
    with Environment(verify=verify, watch="off") as env:
        assert env.execute_workflow(workflow, size) == sum(range(size))
    return EVENTS_OF_ONE * size


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence, shapes.four_ways])
def test_event_cost_is_constant_on_the_engine(workflow: Any) -> None:
    """Engine, evaluator and activities together."""
    assert_flat(lambda size: _executed(workflow, "off", size), small=32, large=128)


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence, shapes.four_ways])
def test_verification_cost_is_a_constant_multiple(workflow: Any, size: int) -> None:
    """Executing everything again at every task would cost as many times as much as there are tasks."""
    _executed(workflow, "always", size)  # what a first time loads and fills is not what is counted
    counts = {}
    for verify in ("off", "always"):
        with Work() as done:
            _executed(workflow, verify, size)
        counts[verify] = done.count
    assert counts["always"] <= counts["off"] * MOST_VERIFIED, counts


@pytest.fixture(params=["memory", "file"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the engine keeps its histories."""
    return "local:" if request.param == "memory" else f"local:{tmp_path / 'scale.db'}"


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sleeping, shapes.mapped, shapes.four_ways])
def test_thousand_fibers_finish(target: str, workflow: Any) -> None:
    """A worker with everything verified; no task fails however much happens during it."""
    with Client.connect(target) as client, Worker(client, workflows=WORKFLOWS, activities=[shapes.echo]):
        handle = client.start_workflow(workflow, 1000, id="large")
        assert handle.result() == sum(range(1000))
        kinds = {event["eventType"] for event in handle.history().events}
    assert "EVENT_TYPE_WORKFLOW_TASK_FAILED" not in kinds


@pytest.mark.parametrize("workflow", [shapes.reader, shapes.Handler.run])
@pytest.mark.parametrize("first", ["signals", "worker"])
def test_thousand_signals_arrive(target: str, workflow: Any, first: str) -> None:
    """All before the first task, or while the run goes on: each is counted once."""

    async def send(client: AsyncClient) -> Any:
        handle = await client.start_workflow(workflow, 1000, id="signals")
        for _ in range(20):
            await asyncio.gather(*[handle.signal("number", 1) for _ in range(50)])
        return handle

    async def script() -> int:
        async with await AsyncClient.connect(target) as client:
            worker = Worker(client, workflows=WORKFLOWS, activities=[shapes.echo])
            handle = await send(client) if first == "signals" else None
            async with worker:
                handle = handle or await send(client)
                result: int = await handle.result()
                return result

    assert asyncio.run(script()) == 1000


def test_two_thousand_waiting_fibers_finish(target: str) -> None:
    """Events, locks and queues with thousands who wait."""
    with Client.connect(target) as client, Worker(client, workflows=WORKFLOWS, activities=[shapes.echo]):
        handle = client.start_workflow(shapes.in_line, 2000, id="line")
        handle.signal(shapes.numbers, 1)
        assert handle.result() == sum(range(2000))
