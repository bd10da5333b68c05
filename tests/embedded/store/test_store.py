"""The SQLite store's promises to the engine: order, durability, reads of durable data."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from hourglass._embedded.store.sqlite import commit_sink
from hourglass._embedded.store.sqlite.batches import Batch
from hourglass._embedded.store.sqlite.commit_sink import FORGET_RUNS
from hourglass._embedded.store.sqlite.records import StoredReads
from hourglass._embedded.store.store import Store
from hourglass.errors import StorageError

from .run_changes import Story, load

Open = Callable[..., Store]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def start_stories(store: Store, *names: str, workflow_id: str = "") -> list[Story]:
    stories = [Story(name, workflow_id) for name in names]
    for story in stories:
        number = store.append(story.start())
    await store.durable(number)
    return stories


async def test_changes_of_one_loop_iteration_are_one_commit(open_store: Open, path: Path) -> None:
    store = open_store()
    watcher = sqlite3.connect(path)
    counts: set[int] = set()
    for turn in range(50):
        for place in range(4):
            number = store.append(Story(f"{turn}-{place}").start())
        await asyncio.sleep(0)
        counts.add(watcher.execute("SELECT count(*) FROM runs").fetchone()[0])
        await store.durable(number)
    watcher.close()
    assert all(count % 4 == 0 for count in counts)


def test_cost_of_due_runs_is_constant(open_store: Open, path: Path) -> None:
    """SQLite takes the same number of steps behind few and many runs of one time."""

    def steps_for(count: int) -> tuple[int, list[str], int]:
        at = path.with_name(f"{count}.db")
        store = open_store(at)
        for number in range(count):
            store.append(Story(f"run-{number:05}").start(wake_ns=1_000))
        run(store.durable(store.append(Story("later").start(wake_ns=2_000))))
        store.close()
        with contextlib.closing(sqlite3.connect(at)) as connection:
            reads, steps = StoredReads(connection, str(at)), 0

            def step() -> None:
                nonlocal steps
                steps += 1

            end = reads.due(1_000, count, 0, 0)[-3]
            connection.set_progress_handler(step, 1)
            run_ids = [due.run_id for due in reads.due(3_000, 10, end.wake_ns, end.key)]
            following = reads.next_due_ns(end.wake_ns)
            return steps, run_ids, following

    few, _, _ = steps_for(20)
    many, run_ids, following = steps_for(2_000)
    assert (run_ids, following) == (["run-01998", "run-01999", "later"], 2_000)
    assert many == few


async def test_forgotten_runs_leave_no_row(open_store: Open, path: Path) -> None:
    store = open_store()
    stories = await start_stories(store, *(f"r{place}" for place in range(5)))
    for place, story in enumerate(stories[:4]):
        story.now_ns = 10_000 * (place + 1)
        number = store.append(story.close())
    await store.durable(number)
    assert store.forget_closed(35_000, 2) == 2
    assert store.forget_closed(35_000, 2) == 1
    assert store.forget_closed(35_000, 2) == 0
    assert store.append(stories[4].signal()) == number + 1
    await store.durable(number + 1)
    assert store.forget_closed(35_000, 2) == 0
    assert [store.load(story.run_id) is None for story in stories] == [True, True, True, False, False]
    assert (await store.count("")).count == 2
    await store.durable(store.append(stories[0].step([])))  # a late change does not block retention
    watcher = sqlite3.connect(path)
    rows = {
        table: watcher.execute(f"SELECT count(DISTINCT {column}) FROM {table}").fetchone()[0]
        for table, column in (
            ("runs", "key"),
            ("events", "run"),
            ("requests", "run"),
            ("visibility", "run_id"),
        )
    }
    watcher.close()
    assert set(rows.values()) == {2}, rows


def test_retention_uses_small_commits(open_store: Open, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL is moved into the file between them."""
    monkeypatch.setattr("hourglass._embedded.store.sqlite.commit_sink.FORGET_BYTES", 100_000)

    async def work() -> None:
        store = open_store(checkpoint_pages=50)
        stories = await start_stories(store, *(f"r{place}" for place in range(300)))
        for story in stories:
            number = store.append(story.close())
        await store.durable(number)
        (large,) = await start_stories(store, "large")
        for _ in range(4):
            store.append(large.signal(200_000))
        await store.durable(store.append(large.close()))
        store.close()
        store = open_store(checkpoint_pages=50)  # with an empty log
        log = path.with_name(f"{path.name}-wal")
        commits: list[int] = []
        longest = 0

        def note(batch: Batch) -> None:
            nonlocal longest
            forget(batch)
            commits.append(len(batch.forgotten))
            longest = max(longest, log.stat().st_size)

        forget = store._writer._forget
        monkeypatch.setattr(store._writer, "_forget", note)
        assert store.forget_closed(1 << 62, 1000) == 301
        for _ in range(6000):
            if not (await store.count("")).count:
                break
            await asyncio.sleep(0.01)  # a pause between two checks of the condition above
        assert sum(commits) == 301
        assert max(commits) == FORGET_RUNS
        # A few checkpoints' worth: all of it is several times as much.
        assert longest <= 4 * 50 * (4096 + 24)

    run(work())


async def test_closing_leaves_a_single_file(open_store: Open, path: Path) -> None:
    store = open_store()
    story = Story("a")
    store.append(story.start())
    store.close()
    store.close()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    stored = open_store().load("a")
    assert stored is not None
    assert stored.run.length == 2


async def test_closed_store_rejects_reads_and_waits(open_store: Open) -> None:
    store = open_store()
    story = Story("a")
    number = store.append(story.start())
    waiter = asyncio.ensure_future(store.durable(number))
    await asyncio.sleep(0)
    store.close()
    await waiter
    late = store.append(story.signal())
    with pytest.raises(StorageError, match="was closed"):
        await store.durable(late)
    notified = asyncio.get_running_loop().create_future()
    store.when_durable(late, notified.set_result)
    assert "was closed" in str(await notified)
    with pytest.raises(StorageError, match="was closed"):
        store.load("a")


def test_changes_without_an_event_loop_are_written_immediately(open_store: Open) -> None:
    store = open_store()
    number = store.append(Story("a").start())
    asyncio.run(store.durable(number))
    assert store.load("a") is not None


async def test_history_longer_than_a_sqlite_value_can_be_read(open_store: Open) -> None:
    store = open_store()
    (story,) = await start_stories(store, "a")
    for _ in range(20):
        await store.durable(store.append(story.signal(500)))
    await store.durable(store.append(story.start_timer()))
    store.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    stored = load(store, "a")
    assert stored.run == story.run
    assert stored.events == tuple(story.events)


async def test_wal_size_is_bounded_by_checkpoints(open_store: Open, path: Path) -> None:
    store = open_store(checkpoint_pages=50)
    (story,) = await start_stories(store, "a")
    log = path.with_name(f"{path.name}-wal")
    sizes = []
    for place in range(300):
        await store.durable(store.append(story.step([], memo={})))
        store.current("w")
        if place % 100 == 99:
            sizes.append(log.stat().st_size)
    # Twice what a checkpoint is made for; without checkpoints it would be ten times as much.
    assert max(sizes) <= 2 * 50 * (4096 + 24)


async def test_wal_kept_by_a_reader_is_reported_once_and_emptied_later(
    open_store: Open, path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_sink, "LONG_LOG", 50)
    monkeypatch.setattr(commit_sink, "LOG_WAIT_MS", 1)
    monkeypatch.setattr(commit_sink, "LOG_PAUSE", 0.0)
    store = open_store(checkpoint_pages=10)
    (story,) = await start_stories(store, "a")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchall()
    for _ in range(25):
        await store.durable(store.append(story.signal(4000)))
    (warning,) = caplog.messages
    assert warning.startswith(f"the write-ahead log of {path} has grown to 0 MiB")
    log = path.with_name(f"{path.name}-wal")
    long = log.stat().st_size
    reader.close()
    for _ in range(20):
        await store.durable(store.append(story.signal(4000)))
    assert log.stat().st_size < long / 2
    assert load(store, "a").events == tuple(story.events)


@pytest.mark.parametrize(("code", "ends"), [(sqlite3.SQLITE_FULL, False), (sqlite3.SQLITE_IOERR_WRITE, True)])
async def test_failing_checkpoint_shuts_down_the_store_only_after_an_io_error(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, code: int, ends: bool
) -> None:
    """The WAL contains everything, so that a checkpoint without disk space may fail."""

    def fails(mode: str = "") -> int:
        error = sqlite3.OperationalError("a checkpoint fails")
        error.sqlite_errorcode = code
        raise error

    store = open_store(checkpoint_pages=1)
    (story,) = await start_stories(store, "a")
    with monkeypatch.context() as patch:
        patch.setattr(store._writer, "checkpoint", fails)
        with pytest.raises(StorageError) if ends else contextlib.nullcontext():
            for _ in range(5):
                await store.durable(store.append(story.signal()))
    assert (store.failure is not None) is ends


async def test_closing_without_a_final_checkpoint_loses_nothing(
    open_store: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(mode: str = "") -> int:
        raise sqlite3.OperationalError("disk I/O error")

    store = open_store()
    await start_stories(store, "a")
    with monkeypatch.context() as patch:
        patch.setattr(store._writer, "checkpoint", fails)
        store.close()
    assert "was closed without a final checkpoint" in caplog.text
    assert open_store().load("a") is not None


async def test_change_of_an_unknown_run_is_rejected(open_store: Open) -> None:
    store = open_store()
    story = Story("a")
    story.start()
    with pytest.raises(StorageError, match="does not contain its run a"):
        await store.durable(store.append(story.signal()))
    assert store.failure is None
    await store.durable(store.append(Story("b").start()))


async def test_runs_beyond_the_key_cache_are_found(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hourglass._embedded.store.sqlite.batches.CACHED_RUNS", 3)

    store = open_store()
    stories = await start_stories(store, *(f"r{place}" for place in range(10)))
    for _ in range(3):
        for story in stories:
            number = store.append(story.signal())
        await store.durable(number)
    for story in stories:
        assert load(store, story.run_id).events == tuple(story.events)
