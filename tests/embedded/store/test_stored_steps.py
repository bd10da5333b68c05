"""Changes of runs are written to all tables by one atomic statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hourglass._embedded.store.sqlite import batches as batch_module
from hourglass._embedded.store.sqlite import database, inherited, run_rows, tables, visibility
from hourglass._embedded.store.sqlite.writer import BatchWriter
from hourglass._embedded.transitions import transitions
from hourglass._evaluator import commands as c
from hourglass.converter import Payload

from .store_conformance import Life, activity

STATE = ("run", "workflow", 1, 0, b"state")


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    """A file with our tables."""
    opened = sqlite3.connect(path, isolation_level=None)
    tables.create(opened, "default", visibility.SCHEMA)
    run_rows.prepare(opened, epoch=0)
    yield opened
    opened.close()


def rows_of_runs(first: int, last: int) -> list[Any]:
    return [
        row
        for key in range(first, last + 1)
        for row in run_rows.rows(key, (f"run {key}", *STATE[1:]), (1, b"e"), [], [], [])
    ]


def stored_keys(connection: sqlite3.Connection) -> list[int]:
    return [key for (key,) in connection.execute("SELECT key FROM runs ORDER BY key").fetchall()]


@pytest.mark.parametrize("count", [1, 5, 256, 257, 600])
def test_any_number_of_rows_is_written(connection: sqlite3.Connection, count: int) -> None:
    """More than 256 rows are several statements, which need a transaction."""
    rows = rows_of_runs(1, count)
    run_rows.write(connection, rows)
    assert run_rows.is_one_statement(rows) == (count <= 256)
    assert stored_keys(connection) == list(range(1, count + 1))


def test_statement_is_atomic(connection: sqlite3.Connection) -> None:
    run_rows.write(connection, rows_of_runs(1, 1))
    with pytest.raises(sqlite3.IntegrityError):
        run_rows.write(connection, [*rows_of_runs(2, 3), *rows_of_runs(1, 1)])
    assert not connection.in_transaction
    assert stored_keys(connection) == [1]


def test_view_and_trigger_are_not_stored_in_the_file(connection: sqlite3.Connection, path: Path) -> None:
    other = sqlite3.connect(path)
    kinds = {kind for (kind,) in other.execute("SELECT type FROM sqlite_master")}
    other.close()
    assert kinds <= {"table", "index"}


KEYWORD = {"K": Payload(b'"x"', "json/plain", {"type": b"Keyword"})}
MEMO = {"note": Payload(b'"y"', "json/plain")}


@pytest.mark.parametrize(
    ("shown", "commands", "is_plain"),
    [
        ({}, (), True),
        ({"memo": MEMO, "search_attributes": KEYWORD}, (), False),
        ({}, (c.UpsertSearchAttributes(KEYWORD), c.UpsertMemo(MEMO)), False),
        (
            {"search_attributes": KEYWORD},
            (c.UpsertSearchAttributes({"K": Payload(b"null", "json/plain")}),),
            False,
        ),
    ],
    ids=["plain", "from-the-start", "given", "taken"],
)
def test_stepwise_writing_equals_writing_in_one_batch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: dict[str, Any],
    commands: tuple[c.Command, ...],
    is_plain: bool,
) -> None:
    """Runs are cached or not. Steps of a run without memo and attributes are single statements."""
    life = Life("r", **shown)
    changes = [
        life.change(wake_ns=1),
        life.take_task(wake_ns=1),
        life.answer(activity(1), *commands, wake_ns=1),
        life.signal(wake_ns=1),
        life.go(lambda run, now: transitions.heartbeat(run, run.activities[5], (), now), wake_ns=77),
        life.terminate(),
    ]
    contents = []
    steps = [[change] for change in changes]
    for name, batches, remembered in (
        ("steps", steps, 4096),
        ("once", [changes], 4096),
        ("uncached", steps, 0),
    ):
        monkeypatch.setattr(batch_module, "CACHED_RUNS", remembered)
        opened = database.open_database(str(tmp_path / name), "default", visibility.SCHEMA)
        pen = BatchWriter(opened.writer, name, opened.epoch)
        seen = []
        for batch in batches:
            built = pen.build(batch)
            assert built.is_one_statement or not is_plain
            pen.write(built)
            seen.append(opened.writer.execute("SELECT wake_ns, close_ns FROM runs").fetchall())
        tables = [
            opened.writer.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            for table in ("runs", "visibility", "visibility_attributes", "pending")
        ]
        contents.append(tables)
        if len(batches) > 1:
            assert [wake for ((wake, _),) in seen] == [1, 1, 1, 1, 77, 0]
        inherited.close(opened.reader)
        inherited.close(opened.writer)
    assert contents[0] == contents[1] == contents[2]
