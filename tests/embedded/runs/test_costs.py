"""What a thing costs grows with the work that it does: counted in reads, openings, evictions and bytes, not in seconds."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.stores import memory_store, open_sqlite
from tests.specs import made

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

from ..memory_world import World, run_async
from ..schedules.test_schedules import hourly
from ..store.stories import Story

DAY = 86_400


async def test_retention_forgets_all_old_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs close between two ticks, all that are older than the retention are forgotten, a slice after the
    other, without another tick.
    """
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
    await world.close()


async def test_retention_waits_for_a_busy_store_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While so many runs are on their way out that the store thread has not come to, none are added."""
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


async def test_large_history_is_not_held_twice(tmp_path: Path) -> None:
    """Ten megabytes of events come into memory within half as much again."""
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
    """A connection of another program that has begun to read, and goes on."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT count(*) FROM runs").fetchall()

    def end(self) -> None:
        self._connection.execute("COMMIT")
        self._connection.close()


async def test_commits_wait_for_a_reader_when_the_wal_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that readers keep from beginning anew is emptied at the end of the last of them, for which commits wait a moment;
    nothing is lost.
    """
    monkeypatch.setattr(commit_sink, "LONG_LOG", 100)
    monkeypatch.setattr(commit_sink, "LOG_WAIT_MS", 60_000)
    path = tmp_path / "a.db"

    store = open_sqlite(path, checkpoint_pages=20)
    story = Story("a")
    await store.durable(store.append(story.start()))
    reader, waits = _Reader(path), threading.Event()
    empty_wal = store._writer.empty_wal

    def noted(wait_ms: int) -> bool:
        waits.set()
        return empty_wal(wait_ms)

    monkeypatch.setattr(store._writer, "empty_wal", noted)
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


async def test_long_reader_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a transaction that is left open the log grows: the warning says why, once, and commits go on. When it has ended,
    the log is emptied.
    """
    monkeypatch.setattr(commit_sink, "LONG_LOG", 100)
    monkeypatch.setattr(commit_sink, "LOG_WAIT_MS", 1)
    monkeypatch.setattr(commit_sink, "LOG_PAUSE", 0.0)
    path = tmp_path / "a.db"

    store = open_sqlite(path, checkpoint_pages=20)
    story = Story("a")
    await store.durable(store.append(story.start()))
    reader = _Reader(path)
    while "reads an old state" not in caplog.text:
        await store.durable(store.append(story.signal(10_000)))
    for _ in range(10):
        await store.durable(store.append(story.signal(10_000)))
    assert caplog.text.count("while a connection reads an old state of the file") == 1
    grown = path.with_name("a.db-wal").stat().st_size
    reader.end()
    for _ in range(20):
        await store.durable(store.append(story.signal(10_000)))
    assert path.with_name("a.db-wal").stat().st_size < grown / 2
    store.close()


def test_schedule_pages_read_only_their_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of many pages reads each schedule twice, once for the index and once to show it; the next list reads those that it
    shows, and those that have changed.
    """

    async def body() -> None:
        clock: Any = RealClock()
        world = await World.new(clock=clock, opened=True)
        for number in range(60):
            await world.call(hourly(f"s{number:02}"))
        reads = 0
        find = world.engine.schedules.find

        def counted(schedule_id: str) -> Any:
            nonlocal reads
            reads += 1
            return find(schedule_id)

        schedules = world.engine.schedules
        monkeypatch.setattr(schedules, "find", counted)
        monkeypatch.setattr(schedules.listing, "_find", counted)

        async def listed() -> list[str]:
            found: list[str] = []
            token = b""
            while True:
                page = await world.call(sc.ListSchedules(page_size=10, next_page_token=token))
                found += [each.schedule_id for each in page.schedules]
                token = page.next_page_token
                if not token:
                    return found

        names = [f"s{number:02}" for number in reversed(range(60))]
        assert await listed() == names
        assert reads == 120
        await world.call(sc.DeleteSchedule(schedule_id="s30"))
        await world.call(hourly("s60"))
        reads = 0
        assert await listed() == ["s60", *(name for name in names if name != "s30")]
        assert reads == 60 + 2
        await world.close()

    run_async(body)


def _activity(seq: int = 1) -> c.ScheduleActivity:
    return made(
        c.ScheduleActivity, seq=seq, activity_id=str(seq), activity_type="a", start_to_close_timeout=9.0
    )


async def test_busy_runs_exceed_the_cache_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for two runs, and memory for four that are busy: while activities are under way none of four is evicted; of
    those that only sleep the oldest goes.
    """
    world = await World.new(max_cached_workflows=2, max_busy_workflows=4)

    async def begin(name: str, command: c.Command) -> list[str]:
        """The runs that are evicted for a new one."""
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
        assert await begin(name, _activity()) == []
    assert len(await begin("e", c.StartTimer(1, 10**12))) == 1  # now there are more than memory allows
    sleeper = world.engine.current("e")
    assert sleeper is not None
    assert sleeper.run.run_id in await begin("f", _activity())
    await world.close()


def test_cache_limit_follows_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small container keeps the usual thousand, a large machine more, and none without an end."""
    found = []
    for size in (1 << 20, 1 << 31, 1 << 50):
        monkeypatch.setattr(runtime_cache, "memory_limit", lambda size=size: size)
        found.append(runtime_cache.most_cached())
    assert found == [1000, 8192, 100_000]


def test_memory_limit_of_this_process_is_known() -> None:
    """What the machine or its control group says is a plausible number."""
    assert 1 << 20 < runtime_cache.memory_limit() < 1 << 60


async def test_ownerless_starts_share_an_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that starts one workflow after the other while no process owns the file opens it once; when it closes, or a
    worker comes, it lets go.
    """
    monkeypatch.setattr(ownerless, "_HOLD", 60.0)
    monkeypatch.setattr(ownerless, "_LINGER", 60.0)
    openings: list[bool] = []
    real = SQLITE.open

    def opened(path: str, namespace: str, *, briefly: bool = False) -> Any:
        openings.append(briefly)
        return real(path, namespace, briefly=briefly)

    monkeypatch.setattr(SQLITE, "open", opened)

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


async def test_forgetting_a_run_keeps_the_earlier_one() -> None:
    """A run that is forgotten leaves the earlier run of its workflow as the latest, if it is there."""
    store = memory_store()
    for run_id, name in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        story = Story(run_id, name)
        store.append(story.start())
        store.append(story.close())
    store.forget("a2")
    assert (store.current("a"), store.current("b")) == ("a1", "b1")
    store.forget("a1")
    assert (store.current("a"), store.current("b")) == ("", "b1")
