"""Group commits: order, batching, retries and the end of the thread, with a scripted sink."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence

import pytest

from hourglass._embedded.store.sqlite import commit_thread
from hourglass._embedded.store.sqlite.commit_thread import StoreThread, Turn

from .run_changes import Story


def failing(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    return error


class Sink:
    """Records commits; waits at each commit until the test releases it."""

    def __init__(self, failures: Sequence[Exception | None] = ()) -> None:
        self.may_commit = threading.Semaphore(0)
        self.committing = threading.Semaphore(0)
        self.failures = list(failures)
        self.batches: list[list[int]] = []
        self.attempts = 0
        self.has_more = False

    def build(self, turns: Sequence[Turn]) -> list[int]:
        return [turn.number for turn in turns]

    def build_separately(self, turns: Sequence[Turn]) -> list[int]:
        return [-turn.number for turn in turns]

    def commit(self, batch: list[int]) -> None:
        self.attempts += 1
        self.committing.release()
        self.may_commit.acquire()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self.batches.append(batch)

    def after_commit(self, batch: list[int]) -> None:
        pass


class World:
    """A store thread with a sink, and its reports."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.committed: list[int] = []
        self.ended: list[Exception | None] = []
        self.thread = StoreThread(
            sink, "the file", on_commit=self.committed.append, on_end=self.ended.append, retry_seconds=0.001
        )
        self.thread.start()

    def put(self, *numbers: int) -> None:
        for number in numbers:
            self.thread.put(Turn((), number))

    def close(self) -> None:
        self.sink.may_commit.release(1000)
        self.thread.close()


def test_changes_queued_during_a_commit_share_the_next() -> None:
    world = World(Sink())
    world.put(1)
    world.sink.committing.acquire()
    world.put(2, 3, 4)
    world.close()
    assert world.sink.batches == [[1], [2, 3, 4]]
    assert world.committed == [1, 4]
    assert world.ended == [None]


def test_long_queue_is_committed_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_thread, "MOST_CHANGES", 3)
    story = Story("a")
    change = story.start()
    world = World(Sink())
    world.put(1)
    world.sink.committing.acquire()
    for number in range(2, 9):
        world.thread.put(Turn((change,), number))
    world.close()
    assert world.sink.batches == [[1], [2, 3, 4], [5, 6, 7], [8]]


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, 4874, 261])
def test_transient_error_is_retried_and_logged_once(code: int, caplog: pytest.LogCaptureFixture) -> None:
    world = World(Sink([failing(code)] * 3))
    world.put(1)
    world.sink.may_commit.release(4)
    for _ in range(4):
        world.sink.committing.acquire()
    world.close()
    assert world.sink.batches == [[1]]
    assert world.sink.attempts == 4
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert world.thread.held == ""
    assert world.ended == [None]


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_IOERR, 1034, 778, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_READONLY, 0]
)
def test_permanent_error_ends_the_thread(code: int) -> None:
    error = failing(code)
    world = World(Sink([None, error]))
    world.put(1)
    world.sink.committing.acquire()
    world.put(2)
    world.sink.may_commit.release()
    world.sink.committing.acquire()
    world.put(3)
    world.close()
    assert world.sink.batches == [[1]]
    assert world.committed == [1]
    assert world.ended == [error]


@pytest.mark.parametrize(
    "error", [OverflowError(), TypeError(), failing(sqlite3.SQLITE_TOOBIG), failing(2067)]
)
def test_batch_with_an_unwritable_change_is_built_separately(error: Exception) -> None:
    world = World(Sink([error]))
    world.put(1)
    world.sink.may_commit.release(2)
    world.close()
    assert world.sink.batches == [[-1]]
    assert world.committed == [1]
    assert world.ended == [None]


def test_closing_does_not_wait_for_disk_space() -> None:
    error = failing(sqlite3.SQLITE_FULL)
    world = World(Sink([error] * 1000))
    world.put(1)
    world.sink.may_commit.release(2)
    world.sink.committing.acquire()
    world.sink.committing.acquire()
    world.close()
    assert world.ended == [error]
    assert world.committed == []
