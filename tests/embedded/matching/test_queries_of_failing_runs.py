"""Queries of runs whose workflow task fails wait for one retry, and are rejected when that has failed, too."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._contract.workflows import QueryAnswer, QueryWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.errors import ServiceError

from ..memory_world import World, settle, start_waiting, text

QUERY = QueryWorkflow(workflow_id="w", query_name="q")


async def fail_task(world: World, run_id: str) -> None:
    """Fail the next workflow task of the run, and advance the clock to its retry."""
    assert (await world.activation()).run_id == run_id
    await world.fail(run_id)
    await world.eviction()
    world.clock.advance(60)
    await settle()


async def start_query(world: World) -> tuple[str, asyncio.Future[QueryAnswer]]:
    """Start a run that has a second task, and query it. Return the run id and the pending answer."""
    run_id = await world.start_run()
    await world.signal()
    waiting = await start_waiting(world.call(QUERY))
    return run_id, waiting


async def test_query_waits_for_the_retry_of_a_failed_task(world: World) -> None:
    run_id, waiting = await start_query(world)
    await fail_task(world, run_id)
    assert not waiting.done()
    while not isinstance(query := (await world.activation()).events[0], e.QueryReceived):
        await world.complete(run_id)  # the history again, and the signal
    await world.complete(run_id, c.AnswerQuery(query.id, text("answer")))
    assert (await waiting).result == (text("answer"),)


async def test_queries_are_rejected_after_the_second_task_failure(world: World) -> None:
    run_id, waiting = await start_query(world)
    await fail_task(world, run_id)
    await fail_task(world, run_id)
    for query in (waiting, world.call(QUERY)):
        with pytest.raises(ServiceError, match="its workflow task keeps failing") as caught:
            await query
        assert caught.value.status == "FAILED_PRECONDITION"
