"""Large runs on the embedded engine: counted costs in an environment, and completion with a worker."""

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


def execute(workflow: Any, verify: Any, size: int) -> int:
    """Execute a workflow of this many activities in an environment. Return the number of their events."""
    with Environment(verify=verify, watch="off") as env:
        assert env.execute_workflow(workflow, size) == sum(range(size))
    return EVENTS_OF_ONE * size


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence, shapes.four_ways])
def test_event_cost_is_constant_on_the_engine(workflow: Any) -> None:
    """Engine, evaluator and activities together."""
    assert_flat(lambda size: execute(workflow, "off", size), small=32, large=128)


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence, shapes.four_ways])
def test_verification_cost_is_a_constant_multiple(workflow: Any, size: int) -> None:
    """A verification at every task would multiply the cost by the number of tasks."""
    execute(workflow, "always", size)  # the first execution also fills caches
    counts = {}
    for verify in ("off", "always"):
        with Work() as done:
            execute(workflow, verify, size)
        counts[verify] = done.count
    assert counts["always"] <= counts["off"] * MOST_VERIFIED, counts


@pytest.fixture(params=["memory", "file"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Engines in memory and on a file."""
    return "local:" if request.param == "memory" else f"local:{tmp_path / 'scale.db'}"


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sleeping, shapes.mapped, shapes.four_ways])
def test_workflow_with_a_thousand_fibers_completes(target: str, workflow: Any) -> None:
    """Every run is verified; no workflow task fails."""
    with Client.connect(target) as client, Worker(client, workflows=WORKFLOWS, activities=[shapes.echo]):
        handle = client.start_workflow(workflow, 1000, id="large")
        assert handle.result() == sum(range(1000))
        kinds = {event["eventType"] for event in handle.history().events}
    assert "EVENT_TYPE_WORKFLOW_TASK_FAILED" not in kinds


@pytest.mark.parametrize("workflow", [shapes.reader, shapes.Handler.run])
@pytest.mark.parametrize("before", ["signals", "worker"])
def test_thousand_signals_are_received_once(target: str, workflow: Any, before: str) -> None:
    async def send(client: AsyncClient) -> Any:
        handle = await client.start_workflow(workflow, 1000, id="signals")
        for _ in range(20):
            await asyncio.gather(*[handle.signal("number", 1) for _ in range(50)])
        return handle

    async def script() -> int:
        async with await AsyncClient.connect(target) as client:
            worker = Worker(client, workflows=WORKFLOWS, activities=[shapes.echo])
            handle = await send(client) if before == "signals" else None
            async with worker:
                handle = handle or await send(client)
                result: int = await handle.result()
                return result

    assert asyncio.run(script()) == 1000


def test_workflow_with_two_thousand_waiting_fibers_completes(target: str) -> None:
    with Client.connect(target) as client, Worker(client, workflows=WORKFLOWS, activities=[shapes.echo]):
        handle = client.start_workflow(shapes.in_line, 2000, id="line")
        handle.signal(shapes.numbers, 1)
        assert handle.result() == sum(range(2000))
