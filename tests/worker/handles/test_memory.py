"""The holder over the engine in memory: real handles, and a worker whose poll loops and holders die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from hourglass._contract.workflows import RunCompleted
from hourglass._embedded.api.connection import EngineConnection, connect_memory
from hourglass._embedded.clock import VirtualClock
from hourglass._evaluator.events import Activation
from hourglass._worker.handles.holder import BridgeHolder, HandleLimits, HandleTables
from hourglass.converter import Payload

from .loops import STEPS, LoopsOverHolder, outcome, start_workflow

# Without adoption a handle drains at once, and completes the tasks of evaluators that hang.
LIMITS = HandleLimits(adoption=0, workflow_grace=0.05, cancel_grace=0.05, drain=5.0, finalize=5.0)
ALL = RunCompleted(result=(Payload(str(STEPS).encode()),))


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(limited())


def holder_of(connection: EngineConnection, tables: HandleTables | None = None) -> BridgeHolder:
    async def same() -> EngineConnection:
        return connection  # the engine belongs to its connection

    return BridgeHolder(same, shared=connection, tables=tables, limits=LIMITS)


def test_cancelled_poll_loops_and_recycles_lose_no_workflow() -> None:
    async def body() -> None:
        rng = random.Random(7)
        clock = VirtualClock()
        connection = await connect_memory(clock=clock)
        holder = holder_of(connection)
        await holder.start()
        worker = LoopsOverHolder(holder, "q", hang=lambda _: rng.random() < 0.02)
        await worker.start()
        ids = [f"w{number}" for number in range(200)]
        for workflow_id in ids:
            await start_workflow(connection, "q", workflow_id)
        waits = [asyncio.ensure_future(outcome(connection, workflow_id)) for workflow_id in ids]
        ends = asyncio.gather(*waits)
        while not ends.done():
            before = sum(wait.done() for wait in waits)
            for _ in range(40):
                worker.restart_loop(rng.choice(("workflow", "activity")))
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            await holder.recycle("q", "chaos")
            await asyncio.wait({ends}, timeout=0.02)
            if sum(wait.done() for wait in waits) == before:
                clock.advance_to_next()  # a task that failed twice is retried with backoff
        assert await ends == [ALL] * 200
        assert worker.cancelled_loops > 40
        await worker.stop()
        counters = holder.tables.counters
        assert counters.abandoned == 0
        assert counters.closed == counters.opened == counters.recycles + 1
        await connection.close()

    run(body)


def test_workflows_complete_although_the_holder_is_replaced_repeatedly() -> None:
    async def body() -> None:
        clock = VirtualClock()
        connection = await connect_memory(clock=clock)
        tables = HandleTables()
        dropped: set[str] = set()

        def hang_once(activation: Activation) -> bool:
            first = activation.run_id not in dropped and len(dropped) < 10
            dropped.add(activation.run_id)
            return first

        ids = [f"w{number}" for number in range(50)]
        for workflow_id in ids:
            await start_workflow(connection, "q", workflow_id)
        waits = [asyncio.ensure_future(outcome(connection, workflow_id)) for workflow_id in ids]
        ends = asyncio.gather(*waits)
        lives, before = 0, -1
        while not ends.done():
            lives += 1
            holder = holder_of(connection, tables)
            await holder.start()
            worker = LoopsOverHolder(holder, "q", hang=hang_once)
            await worker.start()
            ended = sum(wait.done() for wait in waits)
            if ended == before:
                clock.advance_to_next()  # a task that failed in two holders is retried with backoff
            before = ended
            await asyncio.wait({ends}, timeout=0.02)
            if not ends.done():
                for loop in worker.loops.values():
                    loop.cancel()
        assert await ends == [ALL] * 50
        await worker.stop()
        assert lives > 1
        assert tables.records == {}
        assert tables.counters.abandoned == 0
        await connection.close()

    run(body)
