"""The tables of an engine's file, its format number, and how older formats become this one.

Must not know: what the blobs hold (see `stored_form`), threads. Invariants: the format is in SQLite's own header
(`user_version`), beside a mark that says whose file it is (`application_id`); a file of a newer format is
refused; a migration is one transaction, after a copy of the file was kept beside it.

    meta      the namespace; the epoch, one more at each opening
    runs      one row per run: its state, when it must be looked at, when it closed
    events    append-only; each row has the events of one run that were committed together, from `first_id` on
    pending   activities and timers that are under way, by the event that began them
    requests  the ids of the requests that were carried out on a run, and of the updates that it has accepted; found
              by the id, for a request may come again when its workflow has gone on in other runs
    schedules one row per schedule: its record, when it acts next, the workflows that it waits for
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hourglass.errors import StorageError

FORMAT = 1
APPLICATION_ID = 0x48475253
"""Marks a file as ours: "HGRS"."""

Migration: TypeAlias = tuple[int, Callable[[sqlite3.Connection], None]]

MIGRATIONS: tuple[Migration, ...] = ()
"""In order: the format that each one leads to, and what it does to the tables."""

ADDED = ("CREATE INDEX IF NOT EXISTS requests_by_id ON requests (request_id)",)
"""What files of this format may lack, because an earlier version made them: it is added when they are opened. Earlier
versions read such a file as they did before.
"""

TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    """CREATE TABLE runs (
        key INTEGER PRIMARY KEY,
        run_id TEXT NOT NULL UNIQUE,
        workflow_id TEXT NOT NULL,
        wake_ns INTEGER NOT NULL,
        close_ns INTEGER NOT NULL,
        state BLOB NOT NULL
    )""",
    "CREATE INDEX runs_by_workflow ON runs (workflow_id)",
    "CREATE INDEX runs_to_wake ON runs (wake_ns) WHERE wake_ns > 0",
    "CREATE INDEX runs_closed ON runs (close_ns) WHERE close_ns > 0",
    """CREATE TABLE events (
        key INTEGER PRIMARY KEY,
        run INTEGER NOT NULL,
        first_id INTEGER NOT NULL,
        data BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX events_by_run ON events (run, first_id)",
    """CREATE TABLE pending (
        run INTEGER NOT NULL,
        event_id INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (run, event_id)
    ) WITHOUT ROWID""",
    """CREATE TABLE requests (
        run INTEGER NOT NULL,
        request_id TEXT NOT NULL,
        PRIMARY KEY (run, request_id)
    ) WITHOUT ROWID""",
    *ADDED,
    """CREATE TABLE schedules (
        schedule_id TEXT PRIMARY KEY,
        wake_ns INTEGER NOT NULL,
        awaited TEXT NOT NULL,
        data BLOB NOT NULL
    )""",
)

_MADE = re.compile(r"create table (?:if not exists )?(\w+)", re.IGNORECASE)

_COLUMNS = {
    "meta": ("name", "value"),
    "runs": ("key", "run_id", "workflow_id", "wake_ns", "close_ns", "state"),
    "events": ("key", "run", "first_id", "data"),
    "pending": ("run", "event_id", "data"),
    "requests": ("run", "request_id"),
    "schedules": ("schedule_id", "wake_ns", "awaited", "data"),
}


def create(connection: sqlite3.Connection, namespace: str, more: str = "") -> None:
    """Make the tables, and those of the script `more`, in an empty database, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in (*TABLES, *more.split(";")):  # `executescript` would commit what is begun
        connection.execute(statement)
    connection.execute(
        "INSERT INTO meta (name, value) VALUES ('namespace', ?), ('epoch', 0)",
        (namespace,),
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def found_format(connection: sqlite3.Connection, path: str) -> int:
    """The format of a file; raises `StorageError` if it is not ours or too new."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StorageError(
            f"the file {path} is a database of another program: name another file. It was not changed",
            status="FAILED_PRECONDITION",
        )
    found = _pragma(connection, "user_version")
    if not 1 <= found <= FORMAT:
        raise StorageError(
            f"the file {path} has format {found}, and this version of Hourglass knows formats up to {FORMAT}: "
            f"use the version that wrote it, or a later one. It was not changed",
            status="FAILED_PRECONDITION",
        )
    return found


def check(connection: sqlite3.Connection, path: str, namespace: str, more: str = "") -> None:
    """Raise `StorageError` unless the tables, and those of the script `more`, are there and belong to the namespace.
    Reads next to nothing.
    """
    wanted: dict[str, tuple[str, ...]] = dict.fromkeys(_MADE.findall(more), ("rowid",)) | _COLUMNS
    for table, columns in wanted.items():
        there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}
        if not there or not there | {"rowid"} >= set(columns):
            raise StorageError(
                f"the file {path} is damaged: its table {table} is not what it should be. Restore a backup",
                status="DATA_LOSS",
            )
    found = connection.execute("SELECT value FROM meta WHERE name = 'namespace'").fetchall()
    if not found or found[0][0] != namespace:
        whose = repr(found[0][0]) if found else "no namespace"
        raise StorageError(
            f"the file {path} belongs to {whose}, not to the namespace {namespace!r}: "
            f"use a file for each namespace",
            status="FAILED_PRECONDITION",
        )


def add_missing(connection: sqlite3.Connection) -> None:
    """Make what an earlier version has not made, in a file of this format."""
    for statement in ADDED:
        connection.execute(statement)


def migrate(connection: sqlite3.Connection, found: int, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the tables of an older format to this one, in one transaction. The caller has kept a copy."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for leads_to, change in migrations:
            if leads_to > found:
                change(connection)
                connection.execute(f"PRAGMA user_version = {leads_to}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def next_epoch(connection: sqlite3.Connection) -> int:
    """Begin a new epoch: what earlier owners handed out is void."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    found = connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()
    connection.execute("COMMIT")
    return int(found[0][0])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchall()[0][0])
