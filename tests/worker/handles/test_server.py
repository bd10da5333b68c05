"""The holder over Core and a Temporal server."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from effort import cases
from hourglass._contract.workflows import RunCompleted
from hourglass._temporal.connection import TemporalConnection, connect
from hourglass._worker.handles.holder import BridgeHolder, HandleLimits, HandleTables
from hourglass.converter import Payload
from hourglass.testing import DevServer

from .loops import STEPS, LoopsOverHolder, cancel_loops_randomly, outcome, start_workflow

pytestmark = pytest.mark.server

ALL = RunCompleted(result=(Payload(str(STEPS).encode()),))
LIMITS = HandleLimits(workflow_grace=0.5)


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the test with a time limit of two minutes."""

    async def limited() -> None:
        async with asyncio.timeout(120):
            await body()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


def holder_on(
    server: DevServer,
    connection: TemporalConnection,
    tables: HandleTables | None = None,
    limits: HandleLimits = LIMITS,
) -> BridgeHolder:
    async def fresh() -> TemporalConnection:
        return await connect(server.target, namespace=server.namespace)

    return BridgeHolder(fresh, shared=connection, tables=tables, limits=limits)


def test_cancelled_poll_loops_and_recycles_lose_no_workflow_on_a_server(
    hourglass_server: DevServer, hourglass_task_queue: str
) -> None:
    queue, many = hourglass_task_queue, cases(80, 200)

    async def body() -> None:
        connection = await connect(hourglass_server.target, namespace=hourglass_server.namespace)
        holder = holder_on(hourglass_server, connection)
        await holder.start()
        worker = LoopsOverHolder(holder, queue)
        await worker.start()
        recycles = [many // 4, many, many * 7 // 4, many * 5 // 2]
        chaos = asyncio.ensure_future(cancel_loops_randomly(worker, random.Random(3), recycle_after=recycles))
        ids = [f"{queue}-{number}" for number in range(many)]

        async def one(each: str) -> Any:
            await start_workflow(connection, queue, each)
            return await outcome(connection, each)

        at_once = asyncio.Semaphore(40)

        async def limited(each: str) -> Any:
            async with at_once:
                return await one(each)

        assert await asyncio.gather(*map(limited, ids)) == [ALL] * many
        chaos.cancel()
        await asyncio.gather(chaos, return_exceptions=True)
        await worker.stop()
        counters = holder.tables.counters
        assert counters.recycles == 4
        assert worker.cancelled_loops > many // 2
        assert counters.abandoned == 0
        assert counters.closed == counters.opened
        await connection.close()

    run(body)


@pytest.mark.parametrize("adoption", [5.0, 0.0])
def test_workflows_on_a_server_complete_although_the_holder_is_replaced(
    hourglass_server: DevServer, hourglass_task_queue: str, adoption: float
) -> None:
    queue = hourglass_task_queue
    limits = HandleLimits(workflow_grace=0.5, adoption=adoption)

    async def body() -> None:
        connection = await connect(hourglass_server.target, namespace=hourglass_server.namespace)
        tables = HandleTables()
        first = holder_on(hourglass_server, connection, tables, limits)
        await first.start()
        dying = LoopsOverHolder(first, queue)
        await dying.start()
        ids = [f"{queue}-{number}" for number in range(30)]
        for workflow_id in ids:
            await start_workflow(connection, queue, workflow_id)
        while not dying.executed:  # noqa: ASYNC110 - until an activity was executed
            await asyncio.sleep(0)
        for loop in dying.loops.values():
            loop.cancel()
        second = holder_on(hourglass_server, connection, tables, limits)
        await second.start()
        worker = LoopsOverHolder(second, queue)
        await worker.start()
        assert await asyncio.gather(*(outcome(connection, workflow_id) for workflow_id in ids)) == [ALL] * 30
        await worker.stop()
        assert tables.counters.takeovers == 1
        assert (tables.counters.abandoned, tables.counters.closed) == ((0, 1) if adoption else (0, 2))
        await connection.close()

    run(body)


def test_idle_queue_can_be_unregistered_and_registered_again_on_a_server(hourglass_server: DevServer) -> None:
    queue = f"idle-{uuid.uuid4().hex[:8]}"

    async def body() -> None:
        connection = await connect(hourglass_server.target, namespace=hourglass_server.namespace)
        holder = holder_on(hourglass_server, connection)
        await holder.start()
        for number in range(2):
            worker = LoopsOverHolder(holder, queue)
            await worker.start()
            await start_workflow(connection, queue, f"{queue}-{number}")
            assert await outcome(connection, f"{queue}-{number}") == ALL
            await holder.unregister_worker(queue)
            await asyncio.gather(*worker.loops.values())
        await holder.stop()
        counters = holder.tables.counters
        assert (counters.opened, counters.closed) == (2, 2)
        await connection.close()

    run(body)
