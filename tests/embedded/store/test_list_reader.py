"""Lists and counts on their own threads: a long one blocks nothing, times out, and does not delay a fork."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from collections.abc import Callable

import pytest

from hourglass._embedded.store.sqlite import list_reader, visibility
from hourglass._embedded.store.sqlite.list_reader import ListReader
from hourglass._embedded.store.store import Store
from hourglass.errors import ServiceError, ServiceTimeoutError, StorageError

from .run_changes import Story

Open = Callable[..., Store]
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def endless(connection: sqlite3.Connection) -> object:
    return connection.execute(ENDLESS).fetchall()


def select_one(connection: sqlite3.Connection) -> object:
    return connection.execute("SELECT 1").fetchall()


def memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)


async def until_taken(reader: ListReader) -> None:
    """Wait until a thread has taken all requests."""
    while not reader._queue.empty():  # noqa: ASYNC110 - it is another thread's, and there is no notification
        await asyncio.sleep(0)


async def test_long_list_does_not_block_the_store(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hourglass._embedded.store.sqlite.store.LISTS_AT_ONCE", 2)

    store = open_store()
    story = Story("a")
    await store.durable(store.append(story.start()))
    long = asyncio.ensure_future(store._lists.ask(endless))
    await until_taken(store._lists)
    await store.durable(store.append(story.signal()))
    assert store.load("a") is not None
    assert (await store.count("")).count == 1
    assert not long.done()
    store.close()
    with pytest.raises(StorageError, match="was closed"):
        await long


async def test_long_list_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_reader, "LIST_SECONDS", 0.05)

    reader = ListReader("x.db", memory, sqlite3.Connection.close)
    with pytest.raises(ServiceTimeoutError, match="narrower filter") as caught:
        await reader.ask(endless)
    assert caught.value.status == "DEADLINE_EXCEEDED"
    monkeypatch.setattr(list_reader, "LIST_SECONDS", 10.0)
    assert await reader.ask(select_one) == [(1,)]
    reader.close()


async def test_cancelled_list_frees_its_thread() -> None:
    reader = ListReader("x.db", memory, sqlite3.Connection.close)
    cancelled_calls = [asyncio.ensure_future(reader.ask(endless)) for _ in range(3)]
    await asyncio.sleep(0)
    for cancelled_call in cancelled_calls:
        cancelled_call.cancel()
    assert await reader.ask(select_one) == [(1,)]
    assert not reader.is_busy
    reader.close()


async def test_list_errors_are_raised_only_at_their_caller() -> None:
    reader = ListReader("x.db", memory, sqlite3.Connection.close)
    with pytest.raises(StorageError, match=r"x\.db"):
        await reader.ask(lambda connection: connection.execute("SELECT * FROM nothing"))
    with pytest.raises(ServiceError, match="invalid query"):
        await reader.ask(lambda connection: visibility.count(connection, "("))
    assert await reader.ask(select_one) == [(1,)]
    reader.close()


@pytest.mark.skipif(
    not hasattr(os, "fork") or sys.platform == "darwin", reason="there is no fork to be tried"
)
async def test_fork_does_not_wait_for_a_list() -> None:
    """The fork interrupts the list, which starts again afterwards."""
    reader = ListReader("x.db", memory, sqlite3.Connection.close)
    call = asyncio.ensure_future(reader.ask(endless))
    await until_taken(reader)
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    _, status = os.waitpid(pid, 0)  # noqa: ASYNC222 - it ends at once
    assert os.waitstatus_to_exitcode(status) == 7
    assert not call.done()
    call.cancel()
    assert await reader.ask(select_one) == [(1,)]
    reader.close()


HOSTILE = {
    "too many words": " OR ".join(
        f"Note = '{' '.join(f'w{place}x{number}' for number in range(30))}'" for place in range(200)
    ),
    "too long": "WorkflowId = '" + "x" * 140_000 + "'",
    "too many conditions": " OR ".join(f"Note = 'w{place}'" for place in range(401)),
    "too many values": f"WorkflowId IN ({', '.join(['1'] * 5001)})",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_oversized_filter_is_rejected_without_a_storage_error(open_store: Open, text: str) -> None:
    store = open_store()
    visibility.declare(store._opened.writer, {"Note": "Text"})
    for ask in (store.count(text), store.page(text, b"", 10)):
        with pytest.raises(ServiceError, match="invalid query") as caught:
            await ask
        assert not isinstance(caught.value, StorageError)
        assert caught.value.status == "INVALID_ARGUMENT"
    store.close()


@pytest.mark.parametrize("limit", ["SQL_LENGTH", "VARIABLE_NUMBER", "EXPR_DEPTH"])
def test_filter_beyond_sqlite_limits_is_rejected(limit: str) -> None:
    """SQLite's limits differ between builds."""
    connection = memory()
    connection.executescript(visibility.SCHEMA)
    visibility.declare(connection, {"Note": "Text"})
    connection.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{limit}"), {"SQL_LENGTH": 2000}.get(limit, 20))
    text = " OR ".join(f"Note = 'w{place}'" for place in range(400))
    with pytest.raises(ServiceError, match="too large for this version of SQLite") as caught:
        visibility.count(connection, text)
    assert not isinstance(caught.value, StorageError)
    connection.close()


async def test_filter_with_four_hundred_conditions_is_accepted(open_store: Open) -> None:
    store = open_store()
    visibility.declare(store._opened.writer, {"Note": "Text"})
    text = " OR ".join(f"Note = 'w{place}'" for place in range(400))
    assert (await store.count(text)).count == 0
    store.close()
