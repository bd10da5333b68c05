"""An engine's file: opening it or creating it, the settings of its connections, and the backup that users request.

Must not know: runs, events, tables (see `tables`), threads.

Invariants: a file in use is opened by SQLite only, never by `open()` (closing such a descriptor would release the locks
that SQLite has in this process); a new file is private to its user, and appears complete or not at all; a file that
cannot be used is not changed; only one connection writes, and only it checkpoints; before a migration a copy of the
file is created in the same folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sqlite3
import stat
import urllib.parse
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite import inherited, tables
from hourglass._embedded.store.sqlite.copies import copy_database, make_private, put_in_place
from hourglass._embedded.store.sqlite.disk_faults import storage_error, storage_errors
from hourglass._embedded.store.sqlite.file_watch import FileWatch
from hourglass._embedded.store.sqlite.log_mark import check_inode, check_left_behind, check_log, mark_log
from hourglass._embedded.store.sqlite.tables import MIGRATIONS, Migration, next_epoch
from hourglass._embedded.store.store import ALLOW_HARD_LINKS, disk_full, is_full, may_have_links
from hourglass.errors import StorageError

__all__ = ["backup"]

OLDEST_SQLITE = (3, 37, 0)
BUSY_SECONDS = 5.0
SMALLEST = 512
"""The smallest page size of SQLite, in bytes. SQLite treats a smaller file as empty, and would overwrite it."""
_STATEMENTS = 256

_WRITER = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # macOS: fsync alone leaves data in the drive's cache
    "PRAGMA wal_autocheckpoint = 0",  # the store thread checkpoints, and handles the errors
    "PRAGMA journal_size_limit = 67108864",
    "PRAGMA cache_size = -16384",
    "PRAGMA secure_delete = FAST",
    "PRAGMA temp_store = MEMORY",
)
_READER = (
    "PRAGMA query_only = ON",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA cache_size = -8192",
    "PRAGMA temp_store = MEMORY",  # so that lists work on a full disk
)


class Opened(msgspec.Struct, frozen=True):
    """An open file: its writing and reading connections, the new epoch, and the watch that checks the file's identity."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection
    epoch: int
    watch: FileWatch


def open_database(
    path: str,
    namespace: str,
    extra_tables: str = "",
    migrations: Sequence[Migration] = MIGRATIONS,
) -> Opened:
    """Open a file, or create it if it does not exist. Raises `StorageError` if the file cannot be used."""
    _check_sqlite()
    _check_place(path)
    _check_names(path)
    with storage_errors(path):
        if not os.path.lexists(path):
            _create_file(path, namespace, extra_tables)
        inherited.reject_stale(path)
        check_log(path, _connect)
        writer = inherited.keep(_connect(path, "rw"), path)
        watch = reader = None
        try:
            version = _begin_wal(writer, path)
            watch = FileWatch(path, writer, partial(copy_database, overwrite=False))
            check_left_behind(path, writer)
            _prepare(writer, path, namespace, extra_tables, migrations, version)
            # The mark is written before the epoch: this process may be killed between the two.
            mark_log(path, epoch_in_file=0, epoch=tables.current_epoch(writer) + 1)
            epoch = next_epoch(writer, path)
            reader = _connect_reader(path)
            # Checkpoint immediately: a process that opened the file by another name has another WAL, and sees the epoch
            # only in the file itself.
            ((busy, pages, moved),) = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            mark_log(path, epoch_in_file=0 if busy or moved < pages else epoch, epoch=epoch)
            watch.begin(epoch)
        except BaseException:
            if reader is not None:
                inherited.close(reader)
            inherited.close(writer)
            if watch is not None:
                watch.close()
            raise
        return Opened(writer, reader, epoch, watch)


def _check_sqlite() -> None:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise StorageError(
            f"SQLite {sqlite3.sqlite_version} is too old: version {'.'.join(map(str, OLDEST_SQLITE))} or "
            f"later is needed",
            status="FAILED_PRECONDITION",
        )


def _check_place(path: str) -> None:
    """Raise `StorageError` with the reason if SQLite would only report "unable to open". The file is not opened."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise _unusable(path, f"cannot be created: the directory {folder} does not exist. Create it first")
    inherited.reject_inherited(path)
    inherited.reject_second_name(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _unusable(path, "is a broken symbolic link: fix or remove it") from None
        return
    except (OSError, ValueError) as error:
        raise _unusable(path, f"cannot be used: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise _unusable(path, "is a directory: pass the path of a file")
    if not stat.S_ISREG(status.st_mode):
        raise _unusable(path, "is not a regular file: choose another path")
    if 0 < status.st_size < SMALLEST:
        raise _unusable(
            path, "is not a database: choose another path, or move this file away. It was not changed"
        )
    if status.st_size == 0:
        raise _unusable(
            path,
            "is empty, but a file of Hourglass is never empty. If the file never had any content, delete it: a new one "
            "will be created. If it was damaged, restore a backup",
        )


_DRAFTS = (".new-", ".partial-")
"""Parts of the names of unfinished files, after the path. After a crash a finished file may still have such a second
name.
"""


def _check_names(path: str) -> None:
    """Raise `StorageError` for a file that other processes may open by another name.

    SQLite's WAL, our lock and the socket are found by name, so processes that use different names would not see each
    other's.
    """
    try:
        names = os.stat(path).st_nlink
    except OSError:
        return
    if names > 1:
        names -= _remove_draft_names(path)
    if names > 1 and not may_have_links():
        name, copy = shlex.quote(path), shlex.quote(f"{path}.copy")
        raise _unusable(
            path,
            f"has {names} names (hard links). Processes that open it under different names would destroy it: copy the "
            f"file while no worker runs (`cp {name} {copy} && mv {copy} {name}`), or delete the other names. If the "
            f"other names are backups that no process opens, set {ALLOW_HARD_LINKS}=1",
        )
    if _is_mount_point(path):
        raise _unusable(
            path,
            "is mounted as a single file (for example by `docker run -v ./app.db:/data/app.db`), so processes outside "
            "the container do not see its log, lock and socket: mount its directory instead",
        )


def _remove_draft_names(path: str) -> int:
    """Remove second names of this file that were left by a crash during its creation. Return the number of removed
    names.
    """
    folder, name = os.path.split(path)
    removed = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder or "."):
            if entry.name.startswith(tuple(f"{name}{draft}" for draft in _DRAFTS)) and os.path.samefile(
                entry, path
            ):
                os.unlink(entry)
                removed += 1
    return removed


def _is_mount_point(path: str) -> bool:
    """Whether a file is the root of a mount; False if the system does not report mounts."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            fields = [line.split(" ", 5) for line in mounts]
    except OSError:
        return False
    real = os.path.realpath(path)
    return any(_unescape(field[4]) == real for field in fields if len(field) == 6)


def _unescape(text: str) -> str:
    """Decode the octal escapes of spaces, tabs, newlines and backslashes in a line of `mountinfo`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _unusable(path: str, reason: str) -> StorageError:
    return StorageError(f"the file {path} {reason}", status="FAILED_PRECONDITION")


def _create_file(path: str, namespace: str, extra_tables: str) -> None:
    """Create a new file under a temporary name, and move the complete file to its path."""
    _check_no_wal(path)
    draft = f"{path}.new-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.unlink(draft)
    try:
        make_private(draft)  # SQLite gives its WAL and the WAL's index the same mode
        connection = _connect(draft, "rw", path)
        try:
            tables.create(connection, namespace, extra_tables)
        finally:
            connection.close()
        put_in_place(draft, path, overwrite=False)
    except FileExistsError:
        pass  # another process was faster; that file is checked like any other
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise storage_error(path, _cannot_open()) from error
        if is_full(error):
            raise disk_full(path) from error
        raise _unusable(path, f"cannot be created: {error.strerror}") from error
    finally:
        for leftover in (draft, f"{draft}-journal"):
            with contextlib.suppress(OSError):
                os.unlink(leftover)


def _cannot_open() -> sqlite3.OperationalError:
    """Return the error that SQLite raises for a file that it cannot open."""
    error = sqlite3.OperationalError("unable to open database file")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN"
    return error


def _check_no_wal(path: str) -> None:
    """Raise `StorageError` if a WAL without its file exists, because SQLite would write the WAL's pages into the new
    file.
    """
    log = f"{path}-wal"
    if os.path.lexists(log) and os.stat(log).st_size > 0:
        raise _unusable(
            path,
            f"is missing, but its write-ahead log {log} exists and contains the latest changes. Put the file back. If "
            "you need neither, delete the log too",
        )


def _begin_wal(connection: sqlite3.Connection, path: str) -> int:
    """Switch to a write-ahead log, and change nothing else. Return the format of the file."""
    version = tables.read_format(connection, path)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
    if mode != "wal":
        raise _unusable(
            path, "is on a file system that does not support SQLite's write-ahead log: use a local disk"
        )
    for setting in _WRITER:
        connection.execute(setting).fetchall()
    return version


def _prepare(
    connection: sqlite3.Connection,
    path: str,
    namespace: str,
    extra_tables: str,
    migrations: Sequence[Migration],
    version: int,
) -> None:
    """Migrate the tables to the current format. Raises `StorageError` if the tables are damaged or of another
    namespace.
    """
    current = max((version for version, _ in migrations), default=tables.FORMAT)
    if version < current:
        copy_database(connection, f"{path}.format-{version}.backup", overwrite=True, source=path)
        tables.migrate(connection, version, migrations)
    tables.check_tables(connection, path, namespace, extra_tables)
    _drop_statistics(connection)


def _drop_statistics(connection: sqlite3.Connection) -> None:
    """Delete the statistics of `ANALYZE`. With old statistics, SQLite would fully scan tables that were small and have
    grown.
    """
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'").fetchall():
        connection.execute("DELETE FROM sqlite_stat1")
        connection.execute(
            "ANALYZE sqlite_schema"
        )  # analyses no table, but makes SQLite reload the statistics


def _connect_reader(path: str, mode: str = "ro") -> sqlite3.Connection:
    connection = inherited.keep(_connect(path, mode), path)
    try:
        for setting in _READER:
            connection.execute(setting).fetchall()
    except BaseException:
        inherited.close(connection)
        raise
    return connection


def connect_read_only(path: str) -> sqlite3.Connection:
    """Return a read-only connection, even if a process owns the file. It must be closed with `inherited.close`."""
    _check_place(path)
    if not os.path.exists(path):
        raise _unusable(path, "does not exist")
    with storage_errors(path):
        check_inode(path)
        connection = _connect_reader(path)
        try:
            tables.read_format(connection, path)
            check_left_behind(path, connection)
        except BaseException:
            inherited.close(connection)
            raise
    return connection


def connect_unowned(path: str) -> sqlite3.Connection:
    """Return a read-only connection, even if the disk is too full for the additional files that SQLite needs.

    The caller must have the file's lock. Raises `StorageError`, also if the latest commits are still in a WAL.
    """
    try:
        return connect_read_only(path)
    except StorageError:
        log = f"{path}-wal"
        if os.path.lexists(log) and os.stat(log).st_size > 0:
            raise
    with storage_errors(path):
        return _connect_reader(path, "ro&immutable=1")


def _connect(path: str, mode: str, known_as: str = "") -> sqlite3.Connection:
    # check_same_thread: opened on the control loop and used on the store thread, but each connection is used by one
    # thread only.
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


def backup(
    file: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Copy the file of an embedded engine while it is in use, by this process or others.

        hourglass.backup("orders.db", "/backups/orders-monday.db")

    The copy contains everything that was acknowledged before the call, passes SQLite's integrity check, and can be opened
    as a `local:` file itself. An existing file is replaced only with `overwrite=True`. `progress` is called repeatedly with
    the number of copied pages and of all pages. Raises `StorageError`.
    """
    path = os.path.abspath(os.fspath(file))
    _check_names(path)
    with NO_FORK.lock:
        connection = connect_read_only(path)
    try:
        copy_database(
            connection,
            os.path.abspath(os.fspath(dest)),
            overwrite=overwrite,
            source=path,
            progress=progress,
        )
    finally:
        with NO_FORK.lock:
            inherited.close(connection)
