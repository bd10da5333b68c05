"""Costs in proportion to the work: counted in reads, openings, evictions and bytes, not in seconds."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.stores import open_sqlite

from hourglass._contract import schedules as sc
from hourglass._contract import workflows as wf
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.clock import RealClock
from hourglass._embedded.multiprocess import ownerless
from hourglass._embedded.multiprocess.shared_file import SharedFile
from hourglass._embedded.runs import upkeep
from hourglass._embedded.store.sqlite import commit_sink
from hourglass._embedded.store.sqlite import store as sqlite
from hourglass._embedded.store.sqlite.store import SQLITE
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import StartSpec
from hourglass._worker.lanes import cache as runtime_cache

from ..memory_world import World, activity, run_async
from ..schedules.test_schedules import hourly
from ..store.run_changes import Story

DAY = 86_400


async def test_one_retention_tick_deletes_all_expired_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices follow each other without another tick."""
    monkeypatch.setattr(upkeep, "SLICE", 10)

    world = await World.new(opened=True, retention=30.0 * DAY)
    for number in range(95):
        await world.start(f"w{number}")
        await world.call(wf.TerminateWorkflow(workflow_id=f"w{number}"))
    world.clock.advance(31 * DAY)
    world.engine._upkeep.tick()
    async with asyncio.timeout(60):
        while (await world.call(wf.ListWorkflows())).workflows:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    assert world.engine._upkeep._forgetting is None


async def test_retention_waits_for_a_busy_store_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "FORGETS_AHEAD", 2)

    store = open_sqlite(tmp_path / "a.db")
    for number in range(6):
        story = Story(f"r{number}")
        store.append(story.start())
        await store.durable(store.append(story.close()))
    monkeypatch.setattr(store._sink, "take_forgotten", list)  # as if the thread never came to it
    assert store.forget_closed(1 << 62, 3) == 3
    assert store.forget_closed(1 << 62, 3) == 0
    store.close()


async def test_history_is_loaded_without_a_second_copy(tmp_path: Path) -> None:
    store = open_sqlite(tmp_path / "a.db")
    story = Story("a")
    store.append(story.start())
    for _ in range(20):
        await store.durable(store.append(story.signal(500_000)))
    tracemalloc.start()
    try:
        stored = store.load("a")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert stored is not None
    assert stored.events == tuple(story.events)
    assert most < 15_000_000
    store.close()


class _Reader:
    """A connection of another program that keeps a read transaction open."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT count(*) FROM runs").fetchall()

    def end(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()


async def test_commits_wait_for_a_reader_if_the_wal_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers keep the WAL from restarting; it is emptied when the last of them ends."""
    monkeypatch.setattr(commit_sink, "LONG_LOG", 100)
    monkeypatch.setattr(commit_sink, "LOG_WAIT_MS", 60_000)
    path = tmp_path / "a.db"

    store = open_sqlite(path, checkpoint_pages=20)
    story = Story("a")
    await store.durable(store.append(story.start()))
    reader, waits = _Reader(path), threading.Event()
    empty_wal = store._writer.empty_wal

    def record_wait(wait_ms: int) -> bool:
        waits.set()
        return empty_wal(wait_ms)

    monkeypatch.setattr(store._writer, "empty_wal", record_wait)
    other = threading.Thread(target=lambda: (waits.wait(60), reader.end()))
    other.start()
    longest = 0
    while not waits.is_set():
        longest = max(longest, path.with_name("a.db-wal").stat().st_size)
        await store.durable(store.append(story.signal(10_000)))
    other.join()
    await store.durable(store.append(story.signal()))
    assert path.with_name("a.db-wal").stat().st_size < longest / 2
    stored = store.load("a")
    assert stored is not None
    assert stored.events == tuple(story.events)
    store.close()


def test_schedule_pages_read_only_their_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first list reads each schedule twice, once for the index; the next one reads only shown and changed
    schedules.
    """

    async def body() -> None:
        clock: Any = RealClock()
        world = await World.new(clock=clock, opened=True)
        for number in range(60):
            await world.call(hourly(f"s{number:02}"))
        reads = 0
        find = world.engine.schedules.find

        def count_read(schedule_id: str) -> Any:
            nonlocal reads
            reads += 1
            return find(schedule_id)

        schedules = world.engine.schedules
        monkeypatch.setattr(schedules, "find", count_read)
        monkeypatch.setattr(schedules.listing, "_find", count_read)

        async def list_all() -> list[str]:
            ids: list[str] = []
            token = b""
            while True:
                page = await world.call(sc.ListSchedules(page_size=10, next_page_token=token))
                ids += [summary.schedule_id for summary in page.schedules]
                token = page.next_page_token
                if not token:
                    return ids

        names = [f"s{number:02}" for number in reversed(range(60))]
        assert await list_all() == names
        assert reads == 120
        await world.call(sc.DeleteSchedule(schedule_id="s30"))
        await world.call(hourly("s60"))
        reads = 0
        assert await list_all() == ["s60", *(name for name in names if name != "s30")]
        assert reads == 60 + 2

    run_async(body)


async def test_busy_runs_exceed_the_cache_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with pending activities are evicted only above `max_busy_workflows`; then the oldest sleeping run is
    evicted.
    """
    world = await World.new(max_cached_workflows=2, max_busy_workflows=4)

    async def begin(name: str, command: c.Command) -> list[str]:
        """Return the runs that are evicted for a new one."""
        run_id = (await world.start(name)).run_id
        evicted = []
        while True:
            activation = await world.activation()
            if isinstance(activation.events[0], e.RunEvicted):
                evicted.append(activation.run_id)
                await world.complete(activation.run_id)
            else:
                assert activation.run_id == run_id
                await world.complete(run_id, command)
                return evicted

    for name in "abcd":
        assert await begin(name, activity()) == []
    assert len(await begin("e", c.StartTimer(1, 10**12))) == 1  # now there are more than memory allows
    sleeper = world.record("e")
    assert sleeper.run.run_id in await begin("f", activity())


def test_cache_size_follows_the_memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    for size in (1 << 20, 1 << 31, 1 << 50):
        monkeypatch.setattr(runtime_cache, "memory_limit", lambda size=size: size)
        limits.append(runtime_cache.most_cached())
    assert limits == [1000, 8192, 100_000]


def test_memory_limit_of_this_process_is_plausible() -> None:
    assert 1 << 20 < runtime_cache.memory_limit() < 1 << 60


async def test_ownerless_starts_share_one_opening_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is released when the client closes or a worker opens it."""
    monkeypatch.setattr(ownerless, "_HOLD", 60.0)
    monkeypatch.setattr(ownerless, "_LINGER", 60.0)
    openings: list[bool] = []
    real = SQLITE.open

    def record_opening(path: str, namespace: str, *, briefly: bool = False) -> Any:
        openings.append(briefly)
        return real(path, namespace, briefly=briefly)

    monkeypatch.setattr(SQLITE, "open", record_opening)

    file = SharedFile(SQLITE, str(tmp_path / "a.db"), "default")
    for number in range(20):
        spec = StartSpec(task_queue="q")
        name = f"w{number}"
        await file.calls.call(
            wf.StartWorkflow(workflow_id=name, workflow_type="t", request_id=name, spec=spec)
        )
    assert openings == [True]
    await file.calls.close()
    other = SharedFile(SQLITE, str(tmp_path / "a.db"), "default")
    handle = await other.open_handle(HandleConfig(task_queue="q", identity="one"))
    assert openings == [True, False]
    await handle.finalize()
