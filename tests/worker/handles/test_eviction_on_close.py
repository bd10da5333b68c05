"""Runs that an in-process engine evicts when they close: the holder reports each of them once."""

from __future__ import annotations

from hourglass._embedded.api.connection import EngineConnection, connect_memory
from hourglass._worker.handles.handles import HandleEvents, HandleRecord
from hourglass._worker.handles.holder import BridgeHolder

from .loops import LoopsOverHolder, outcome, start_workflow
from .test_memory import ALL, LIMITS, run


def test_holder_reports_each_closed_run_as_evicted_once() -> None:
    async def body() -> None:
        connection = await connect_memory()
        evicted: list[tuple[HandleRecord, str]] = []

        async def same() -> EngineConnection:
            return connection

        holder = BridgeHolder(
            same,
            shared=connection,
            limits=LIMITS,
            events=HandleEvents(run_evicted=lambda *run: evicted.append(run)),
        )
        await holder.start()
        worker = LoopsOverHolder(holder, "q")
        await worker.start()
        for number in range(5):
            await start_workflow(connection, "q", f"w{number}")
        assert [await outcome(connection, f"w{number}") for number in range(5)] == [ALL] * 5
        runs = [connection.engine.current(f"w{number}") for number in range(5)]
        assert sorted(run_id for _, run_id in evicted) == sorted(run.run.run_id for run in runs if run)
        assert {(record.queue, record.generation) for record, _ in evicted} == {("q", 1)}
        await worker.stop()
        assert len(evicted) == 5
        await connection.close()

    run(body)
