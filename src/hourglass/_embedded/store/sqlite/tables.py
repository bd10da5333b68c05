"""The tables and formats of an engine's file: creating, checking and migrating them; its epochs.

Must not know: runs, events, the content of blobs (see `records`), threads, paths (they only name the file in errors).
The tables:

    meta      the namespace; the epoch, incremented by each opening; the path by which the file was opened last
    runs      one row per run: its state, wake time and close time
    events    append-only; each row has the events of a run that were committed together, from `first_id` on
    pending   activities, timers and children in progress, by the event that began them
    requests  the ids of the requests that were carried out on a run, and of the updates that it has accepted; indexed
              by id, because a request may be repeated after its workflow has continued in other runs
    schedules one row per schedule: its record, its next time, the workflows that it waits for

Invariants: the format is in SQLite's header (`user_version`), beside a mark of our files (`application_id`); a file of a
newer format is rejected; a migration is one transaction.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hourglass.errors import StorageError

FORMAT = 2
OLDEST_FORMAT = 2
"""The oldest supported format. Format 1 belongs to versions that were never released."""
APPLICATION_ID = 0x48475253
"""SQLite's application id of our files: "HGRS" in ASCII."""

Migration: TypeAlias = tuple[int, Callable[[sqlite3.Connection], None]]

MIGRATIONS: tuple[Migration, ...] = ()
"""The migrations in order: the format after each, and the function that changes the tables."""

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
    "CREATE INDEX requests_by_id ON requests (request_id)",
    """CREATE TABLE schedules (
        schedule_id TEXT PRIMARY KEY,
        wake_ns INTEGER NOT NULL,
        awaited TEXT NOT NULL,
        data BLOB NOT NULL
    )""",
)

_CREATED = re.compile(r"create table (\w+)", re.IGNORECASE)

_COLUMNS = {
    "meta": ("name", "value"),
    "runs": ("key", "run_id", "workflow_id", "wake_ns", "close_ns", "state"),
    "events": ("key", "run", "first_id", "data"),
    "pending": ("run", "event_id", "data"),
    "requests": ("run", "request_id"),
    "schedules": ("schedule_id", "wake_ns", "awaited", "data"),
}


def create(connection: sqlite3.Connection, namespace: str, extra_tables: str = "") -> None:
    """Create the tables, and those of the script `extra_tables`, in an empty database, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in (*TABLES, *extra_tables.split(";")):  # `executescript` would commit the transaction
        connection.execute(statement)
    connection.execute(
        "INSERT INTO meta (name, value) VALUES ('namespace', ?), ('epoch', 0)",
        (namespace,),
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


def read_format(connection: sqlite3.Connection, path: str) -> int:
    """Return the format of a file. Raises `StorageError` if the file is not ours or has an unsupported format."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StorageError(
            f"the file {path} is a database of another program: choose another path. It was not changed",
            status="FAILED_PRECONDITION",
        )
    version = _pragma(connection, "user_version")
    if version < OLDEST_FORMAT:
        raise StorageError(
            f"the file {path} has format {version}, which was written before the first release of Hourglass and cannot "
            "be read by this version. Finish its workflows with the old version, and use a new file with this version. "
            "The file was not changed",
            status="FAILED_PRECONDITION",
        )
    if version > FORMAT:
        raise StorageError(
            f"the file {path} has format {version}, but this version of Hourglass supports only formats up to {FORMAT}: "
            "use the version that wrote the file, or a later one. The file was not changed",
            status="FAILED_PRECONDITION",
        )
    return version


def check_tables(connection: sqlite3.Connection, path: str, namespace: str, extra_tables: str = "") -> None:
    """Raise `StorageError` unless the tables, and those of the script `extra_tables`, exist and belong to the namespace.

    This check is fast, because it reads few pages.
    """
    expected: dict[str, tuple[str, ...]] = dict.fromkeys(_CREATED.findall(extra_tables), ("rowid",))
    expected.update(_COLUMNS)
    for table, columns in expected.items():
        existing = {row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}
        if not existing or not existing | {"rowid"} >= set(columns):
            raise StorageError(
                f"the file {path} is damaged: its table {table} is missing or has other columns. Restore a backup",
                status="DATA_LOSS",
            )
    stored = connection.execute("SELECT value FROM meta WHERE name = 'namespace'").fetchall()
    if not stored or stored[0][0] != namespace:
        whose = repr(stored[0][0]) if stored else "no namespace"
        raise StorageError(
            f"the file {path} belongs to {whose}, not to the namespace {namespace!r}: "
            f"use a file for each namespace",
            status="FAILED_PRECONDITION",
        )


def migrate(
    connection: sqlite3.Connection, version: int, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Migrate the tables to the current format, in one transaction. The caller must have made a copy of the file."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for next_version, change in migrations:
            if next_version > version:
                change(connection)
                connection.execute(f"PRAGMA user_version = {next_version}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def next_epoch(connection: sqlite3.Connection, path: str) -> int:
    """Begin a new epoch of the file, and record the path by which it is opened. Earlier owners can no longer write."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    connection.execute(
        "INSERT OR REPLACE INTO meta (name, value) VALUES ('opened_as', ?)", (os.fsencode(path),)
    )
    epoch = current_epoch(connection)
    connection.execute("COMMIT")
    return epoch


def current_epoch(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()[0][0])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchall()[0][0])
