"""Opening an engine's file: making a new one, checking an old one, the settings of the connections.

Must not know: runs, events. Invariants: a file that is in use is touched by SQLite only, never by `open()` (closing
such a descriptor would drop the locks that SQLite holds in this process); a new file is its user's alone, and appears
whole or not at all;
a file that cannot be used is left as it was. One connection writes, and it alone checkpoints.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import urllib.parse
from collections.abc import Sequence

import msgspec

from hourglass._embedded.stores import inherited, schema
from hourglass._embedded.stores.disk_faults import is_full, no_room, storage_error, storage_errors
from hourglass._embedded.stores.file_copy import copy_database, make_private, put_in_place
from hourglass.errors import StorageError

OLDEST_SQLITE = (3, 37, 0)
BUSY_SECONDS = 5.0
SMALLEST = 512
"""Bytes of the smallest page; SQLite takes less for an empty file, and would fill it."""
_STATEMENTS = 256

_WRITER = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS: fsync alone leaves it in the drive's cache
    "PRAGMA wal_autocheckpoint = 0",  # the store thread checkpoints, where it sees an error
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -16384",
    "PRAGMA secure_delete = FAST",
    "PRAGMA temp_store = MEMORY",
)
_READER = (
    "PRAGMA query_only = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA cache_size = -8192",
    "PRAGMA temp_store = MEMORY",  # a list can be made on a full disk
)


class Opened(msgspec.Struct, frozen=True):
    """A file in use: the connection that writes, the one that reads, and the epoch that began."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection
    epoch: int


def open_database(
    path: str,
    namespace: str,
    more_tables: str = "",
    migrations: Sequence[schema.Migration] = schema.MIGRATIONS,
) -> Opened:
    """Open a file, or make it if there is none; raises `StorageError` for one that cannot be used."""
    _check_sqlite()
    _check_place(path)
    with storage_errors(path):
        if not os.path.lexists(path):
            _make(path, namespace, more_tables)
        writer = _open_writer(path, namespace, more_tables, migrations)
        try:
            return Opened(writer, _connect_reader(path), schema.next_epoch(writer))
        except BaseException:
            inherited.close(writer)
            raise


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old: version {'.'.join(map(str, OLDEST_SQLITE))} or "
            f"later is needed",
            status="FAILED_PRECONDITION",
        )


def _check_place(path: str) -> None:
    """Say clearly what SQLite would only call "unable to open". Nothing is opened here."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise _unusable(path, f"cannot be made: there is no folder {folder}. Make it first")
    inherited.refuse_inherited(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _unusable(path, "is a link that leads nowhere") from None
        return
    except (OSError, ValueError) as error:
        raise _unusable(path, f"cannot be used: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise _unusable(path, "is a folder: name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise _unusable(path, "is not a regular file: name another")
    if 0 < status.st_size < SMALLEST:
        raise _unusable(
            path, "is not a database: name another file, or move this one away. It was not changed"
        )
    if status.st_size == 0:
        raise _unusable(
            path,
            "is empty, which no file of Hourglass ever is: if nothing was in it, delete it and a new one is "
            "made; if it was damaged, restore a backup",
        )


def _unusable(path: str, why: str) -> StorageError:
    return StorageError(f"the file {path} {why}", status="FAILED_PRECONDITION")


def _make(path: str, namespace: str, more_tables: str) -> None:
    """A new file, made under another name and moved into its place whole."""
    _refuse_leftovers(path)
    draft = f"{path}.new-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.unlink(draft)
    try:
        make_private(draft)  # SQLite gives its log and the log's index the same mode
        connection = _connect(draft, "rw", path)
        try:
            schema.create(connection, namespace, more_tables)
        finally:
            connection.close()
        put_in_place(draft, path, overwrite=False)
    except FileExistsError:
        pass  # somebody else was quicker; theirs is checked like any other
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise storage_error(path, _cannot_open()) from error
        if is_full(error):
            raise no_room(path) from error
        raise _unusable(path, f"cannot be made: {error.strerror}") from error
    finally:
        for leftover in (draft, f"{draft}-journal"):
            with contextlib.suppress(OSError):
                os.unlink(leftover)


def _cannot_open() -> sqlite3.OperationalError:
    """What SQLite would have said."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
    return error


def _refuse_leftovers(path: str) -> None:
    """A new file beside an old log would be taken for the old one's, and filled with it."""
    log = f"{path}-wal"
    if os.path.lexists(log) and os.stat(log).st_size > 0:
        raise _unusable(
            path,
            f"is gone, but its log {log} is still there, with what was written last: put the file back; "
            f"or, if both are of no use, delete the log too",
        )


def _open_writer(
    path: str, namespace: str, more_tables: str, migrations: Sequence[schema.Migration]
) -> sqlite3.Connection:
    connection = inherited.keep(_connect(path, "rw"), path)
    try:
        found = schema.found_format(connection, path)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
        if mode != "wal":
            raise _unusable(path, "is on a file system that cannot keep a write-ahead log: use a local disk")
        for setting in _WRITER:
            connection.execute(setting).fetchall()
        wanted = max((leads_to for leads_to, _ in migrations), default=schema.FORMAT)
        if found < wanted:
            copy_database(connection, f"{path}.format-{found}.backup", overwrite=True, source=path)
            schema.migrate(connection, found, migrations)
        schema.check(connection, path, namespace, more_tables)
        schema.add_missing(connection)
        _drop_statistics(connection)
    except BaseException:
        inherited.close(connection)
        raise
    return connection


def _drop_statistics(connection: sqlite3.Connection) -> None:
    """Forget what `ANALYZE` found: a table that was small then would be read from end to end when it is large."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'").fetchall():
        connection.execute("DELETE FROM sqlite_stat1")
        connection.execute("ANALYZE sqlite_schema")  # analyses nothing; reads the statistics anew


def _connect_reader(path: str) -> sqlite3.Connection:
    connection = inherited.keep(_connect(path, "ro"), path)
    for setting in _READER:
        connection.execute(setting).fetchall()
    return connection


def connect_read_only(path: str) -> sqlite3.Connection:
    """A connection that reads a file which somebody may own, and never changes it. Close it by `inherited`."""
    _check_place(path)
    if not os.path.exists(path):
        raise _unusable(path, "does not exist")
    with storage_errors(path):
        connection = _connect_reader(path)
        try:
            schema.found_format(connection, path)
        except BaseException:
            inherited.close(connection)
            raise
    return connection


def connect_unowned(path: str) -> sqlite3.Connection:
    """A connection that reads a file of which the caller has the lock, where there is no room even for the files that
    SQLite needs beside it. Raises `StorageError`, also if what was written last is still in a log.
    """
    try:
        return connect_read_only(path)
    except StorageError:
        log = f"{path}-wal"
        if os.path.lexists(log) and os.stat(log).st_size > 0:
            raise
    with storage_errors(path):
        connection = inherited.keep(_connect(path, "ro&immutable=1"), path)
        for setting in _READER:
            connection.execute(setting).fetchall()
    return connection


def _connect(path: str, mode: str, known_as: str = "") -> sqlite3.Connection:
    # check_same_thread: opened on the control loop, used on the store thread; each connection by one thread.
    try:
        return sqlite3.connect(
            f"file:{urllib.parse.quote(os.fsencode(path))}?mode={mode}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
        )
    except sqlite3.Error as error:
        raise storage_error(known_as or path, error) from error
