"""An engine's file: its tables and formats, opening it or creating it, the settings of its connections, copies.

Must not know: runs, events, the content of blobs (see `records`), threads. The tables:

    meta      the namespace; the epoch, incremented by each opening; the path by which the file was opened last
    runs      one row per run: its state, wake time and close time
    events    append-only; each row has the events of a run that were committed together, from `first_id` on
    pending   activities, timers and children in progress, by the event that began them
    requests  the ids of the requests that were carried out on a run, and of the updates that it has accepted; indexed
              by id, because a request may be repeated after its workflow has continued in other runs
    schedules one row per schedule: its record, its next time, the workflows that it waits for

Invariants of a file: a file in use is opened by SQLite only, never by `open()` (closing such a descriptor would release
the locks that SQLite has in this process); a new file is private to its user, and appears complete or not at all; a file
that cannot be used is not changed. Only one connection writes, and only it checkpoints. The format is in SQLite's header
(`user_version`), beside a mark of our files (`application_id`); a file of a newer format is rejected; a migration is one
transaction, after a copy of the file was created beside it.

Invariants of a copy: it shows the file at one moment, because a read transaction is open while SQLite's online backup
copies the pages in portions; the owner's commits neither disturb the copy nor wait for it; it appears complete, checked
and synced, or not at all; an existing file is overwritten only on request; only the users who can read the original can
read the copy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import sqlite3
import stat
import urllib.parse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite import inherited
from hourglass._embedded.store.sqlite.disk_faults import storage_error, storage_errors
from hourglass._embedded.store.sqlite.file_watch import FileWatch
from hourglass._embedded.store.sqlite.log_mark import check_inode, check_left_behind, check_log, mark_log
from hourglass._embedded.store.store import is_full, no_room
from hourglass.errors import StorageError

__all__ = ["backup"]


# --- tables and formats -------------------------------------------------------------------------------------

FORMAT = 2
OLDEST_FORMAT = 2
"""Format 1 belongs to versions that were never released."""
APPLICATION_ID = 0x48475253
"""Marks a file as ours: "HGRS"."""

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
    """Return the format of a file. Raises `StorageError` if it is not ours, or of an unsupported format."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise StorageError(
            f"the file {path} is a database of another program: name another file. It was not changed",
            status="FAILED_PRECONDITION",
        )
    version = _pragma(connection, "user_version")
    if version < OLDEST_FORMAT:
        raise StorageError(
            f"the file {path} has format {version}, of a version of Hourglass before the first release, which this version "
            f"cannot read: let that version finish its workflows, and name a new file here. It was not changed",
            status="FAILED_PRECONDITION",
        )
    if version > FORMAT:
        raise StorageError(
            f"the file {path} has format {version}, and this version of Hourglass knows formats up to {FORMAT}: "
            f"use the version that wrote it, or a later one. It was not changed",
            status="FAILED_PRECONDITION",
        )
    return version


def check_tables(connection: sqlite3.Connection, path: str, namespace: str, extra_tables: str = "") -> None:
    """Raise `StorageError` unless the tables, and those of the script `extra_tables`, exist and belong to the namespace.

    Fast: it reads hardly any pages.
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
    """Migrate the tables to the current format, in one transaction. The caller has made a copy of the file."""
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
    """Begin a new epoch of the file, and record the path by which it is opened. Fences earlier owners."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'epoch'")
    connection.execute(
        "INSERT OR REPLACE INTO meta (name, value) VALUES ('opened_as', ?)", (os.fsencode(path),)
    )
    epoch = _epoch(connection)
    connection.execute("COMMIT")
    return epoch


def _epoch(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()[0][0])


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchall()[0][0])


# --- copies, and files that appear under their name whole ---------------------------------------------------

_PORTION = 512
"""Pages copied at a time."""
_PAUSE = 0.002
"""Seconds between portions: commits need the disk too, and other threads the interpreter."""


Progress: TypeAlias = Callable[[int, int], object]
"""A callback for the number of copied pages and the number of all pages."""


def copy_database(
    connection: sqlite3.Connection,
    dest: str,
    *,
    overwrite: bool,
    source: str = "",
    progress: Progress | None = None,
) -> None:
    """Copy the database, as the connection sees it now, to a new file."""
    _check_destination(dest, overwrite, source)
    # With the host name: processes in different containers often have the same process id.
    draft = f"{dest}.partial-{socket.gethostname()}-{os.getpid()}"
    _remove(draft)
    try:
        make_private(draft)
        with NO_FORK.lock, storage_errors(dest):
            _copy(connection, draft, progress)
        if source:
            os.chmod(draft, stat.S_IMODE(os.stat(source).st_mode) & 0o666)
        put_in_place(draft, dest, overwrite=overwrite)
    except FileExistsError as error:
        raise _rejected_copy(dest, "exists already; pass overwrite=True to replace it") from error
    except OSError as error:
        raise _rejected_copy(dest, f"cannot be written: {error.strerror}") from error
    finally:
        _remove(draft)


def make_private(path: str) -> None:
    """Create an empty file that only this user may use. Raises FileExistsError if the path exists."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def put_in_place(draft: str, path: str, *, overwrite: bool) -> None:
    """Move a finished file to its path and sync the folder. Raises FileExistsError if the path exists."""
    if overwrite:
        os.replace(draft, path)
    else:
        try:
            os.link(draft, path)  # unlike a rename it never replaces
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(path):  # the file system has no links
                raise FileExistsError(path) from None
            os.rename(draft, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy(connection: sqlite3.Connection, draft: str, progress: Progress | None) -> None:
    def pause(_status: int, remaining: int, pages: int) -> None:
        if progress is not None:
            progress(pages - remaining, pages)
        NO_FORK.pause(_PAUSE)

    target = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.execute("BEGIN")
        try:
            # The first read takes the snapshot. Without it each commit of a busy writer would restart the copy.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            connection.backup(target, pages=_PORTION, progress=pause)
        finally:
            connection.execute("ROLLBACK")
        _begin_another_epoch(target)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, without a WAL beside it
        problems = target.execute("PRAGMA integrity_check(1)").fetchall()
        if problems != [("ok",)]:
            raise StorageError(
                "the file is damaged: its copy failed SQLite's integrity check and was deleted",
                status="DATA_LOSS",
            )
    finally:
        target.close()


def _begin_another_epoch(target: sqlite3.Connection) -> None:
    """Set an epoch that the original never has, so that neither an owner nor a WAL of the original is used with the copy."""
    with contextlib.suppress(sqlite3.OperationalError):  # a file of another format has no such table
        target.execute(
            "UPDATE meta SET value = value + ? WHERE name = 'epoch'", (1 + secrets.randbelow(1 << 32),)
        )


def _check_destination(dest: str, overwrite: bool, source: str) -> None:
    folder = os.path.dirname(dest) or "."
    if not os.path.isdir(folder):
        raise _rejected_copy(dest, f"cannot be created: there is no folder {folder}")
    if os.path.isdir(dest):
        raise _rejected_copy(dest, "is a folder: name a file in it")
    if os.path.lexists(dest) and not overwrite:
        raise _rejected_copy(dest, "exists already; pass overwrite=True to replace it")
    if source and os.path.exists(dest) and os.path.samefile(source, dest):
        raise _rejected_copy(dest, "is the file itself")
    if os.path.lexists(f"{dest}-wal"):
        raise _rejected_copy(dest, "has a log of SQLite beside it: a process uses it, or ended suddenly")


def _rejected_copy(dest: str, reason: str) -> StorageError:
    return StorageError(f"the copy {dest} {reason}", status="FAILED_PRECONDITION")


def _remove(draft: str) -> None:
    for leftover in (draft, f"{draft}-journal"):
        with contextlib.suppress(OSError):
            os.unlink(leftover)


# --- opening ------------------------------------------------------------------------------------------------

OLDEST_SQLITE = (3, 37, 0)
BUSY_SECONDS = 5.0
SMALLEST = 512
"""The size of the smallest page in bytes. SQLite treats a smaller file as empty, and would overwrite it."""
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
    "PRAGMA temp_store = MEMORY",  # lists work on a full disk
)


class Opened(msgspec.Struct, frozen=True):
    """An open file: its writing and its reading connection, the new epoch, and the check of the file's identity."""

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
    """Open a file, or create it if it does not exist. Raises `StorageError` if it cannot be used."""
    _check_sqlite()
    _check_place(path)
    _check_names(path)
    with storage_errors(path):
        if not os.path.lexists(path):
            _create_file(path, namespace, extra_tables)
        inherited.refuse_stale(path)
        check_log(path, _connect)
        writer = inherited.keep(_connect(path, "rw"), path)
        watch = reader = None
        try:
            version = _begin_wal(writer, path)
            watch = FileWatch(path, writer, partial(copy_database, overwrite=False))
            check_left_behind(path, writer)
            _prepare(writer, path, namespace, extra_tables, migrations, version)
            # The mark is written before the epoch: this process may be killed between the two.
            mark_log(path, epoch_in_file=0, epoch=_epoch(writer) + 1)
            epoch = next_epoch(writer, path)
            reader = _connect_reader(path)
            # Checkpoint at once: a process that opened the file by another name has another WAL, and sees the epoch only in
            # the file itself.
            ((busy, pages, moved),) = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            mark_log(path, epoch_in_file=0 if busy or moved < pages else epoch, epoch=epoch)
            watch.begin()
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
    """Raise `StorageError` with the reason if SQLite would only report "unable to open". Opens nothing."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise _unusable(path, f"cannot be created: there is no folder {folder}. Create it first")
    inherited.refuse_inherited(path)
    inherited.refuse_second_name(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _unusable(path, "is a broken link") from None
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
            "is empty, which a file of Hourglass never is: if it had no content, delete it, and a new one is created; "
            "if it was damaged, restore a backup",
        )


ALLOW_HARD_LINKS = "HOURGLASS_ALLOW_HARD_LINKS"
"""Environment variable: 1 lets a process open a file that has more than one name."""

_DRAFTS = (".new-", ".partial-")
"""The parts after the path in the names of unfinished files. A crash can leave such a second name of a finished file."""


def _check_names(path: str) -> None:
    """Raise `StorageError` for a file that other processes may open by another name.

    SQLite's WAL, our lock and the socket are found by name: such processes would not see those of each other.
    """
    try:
        names = os.stat(path).st_nlink
    except OSError:
        return
    if names > 1:
        names -= _remove_draft_names(path)
    if names > 1 and os.environ.get(ALLOW_HARD_LINKS) != "1":
        raise _unusable(
            path,
            f"has {names} names (hard links), and processes that open it by different names would destroy it: copy it "
            f"(`cp {path} {path}.copy && mv {path}.copy {path}`, while no worker runs) or delete the other names. If they are "
            f"backups that nobody opens, set {ALLOW_HARD_LINKS}=1",
        )
    if _is_mount_point(path):
        raise _unusable(
            path,
            "is mounted by itself (as `docker run -v ./app.db:/data/app.db` does), so that processes outside do not see its log, "
            "lock and socket: mount the folder that it is in",
        )


def _remove_draft_names(path: str) -> int:
    """Remove names that a crash left while this file was created. Return the number of removed names."""
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
    """Whether a file is the root of a mount; False if the system does not report it."""
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
    """Create a new file under another name, and move it to its path when it is complete."""
    _check_no_wal(path)
    draft = f"{path}.new-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.unlink(draft)
    try:
        make_private(draft)  # SQLite gives its WAL and the WAL's index the same mode
        connection = _connect(draft, "rw", path)
        try:
            create(connection, namespace, extra_tables)
        finally:
            connection.close()
        put_in_place(draft, path, overwrite=False)
    except FileExistsError:
        pass  # another process was faster; its file is checked like any other
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise storage_error(path, _cannot_open()) from error
        if is_full(error):
            raise no_room(path) from error
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
    """Raise `StorageError` if a WAL without its file exists: SQLite would write its pages into the new file."""
    log = f"{path}-wal"
    if os.path.lexists(log) and os.stat(log).st_size > 0:
        raise _unusable(
            path,
            f"is missing, but its log {log} still exists, with the latest changes: put the file back; "
            f"or, if both are useless, delete the log, too",
        )


def _begin_wal(connection: sqlite3.Connection, path: str) -> int:
    """Switch to a write-ahead log, and change nothing else. Return the format of the file."""
    version = read_format(connection, path)
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
    if mode != "wal":
        raise _unusable(path, "is on a file system that cannot keep a write-ahead log: use a local disk")
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
    """Migrate the tables to the current format. Raises `StorageError` if they are damaged or of another namespace."""
    current = max((version for version, _ in migrations), default=FORMAT)
    if version < current:
        copy_database(connection, f"{path}.format-{version}.backup", overwrite=True, source=path)
        migrate(connection, version, migrations)
    check_tables(connection, path, namespace, extra_tables)
    _drop_statistics(connection)


def _drop_statistics(connection: sqlite3.Connection) -> None:
    """Delete the statistics of `ANALYZE`: SQLite would scan a table completely that was small then and is large now."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'").fetchall():
        connection.execute("DELETE FROM sqlite_stat1")
        connection.execute(
            "ANALYZE sqlite_schema"
        )  # analyses nothing; makes SQLite read the statistics again


def _connect_reader(path: str, mode: str = "ro") -> sqlite3.Connection:
    connection = inherited.keep(_connect(path, mode), path)
    for setting in _READER:
        connection.execute(setting).fetchall()
    return connection


def connect_read_only(path: str) -> sqlite3.Connection:
    """Return a connection that only reads. A process may own the file. Close the connection by `inherited.close`."""
    _check_place(path)
    if not os.path.exists(path):
        raise _unusable(path, "does not exist")
    with storage_errors(path):
        check_inode(path)
        connection = _connect_reader(path)
        try:
            read_format(connection, path)
            check_left_behind(path, connection)
        except BaseException:
            inherited.close(connection)
            raise
    return connection


def connect_unowned(path: str) -> sqlite3.Connection:
    """Return a connection that only reads, even if the disk is too full for the files that SQLite needs beside the file.

    The caller has the file's lock. Raises `StorageError`, also if the latest commits are still in a WAL.
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
    # check_same_thread: opened on the control loop and used on the store thread, but each connection by one thread only.
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


# --- the backup that users ask for --------------------------------------------------------------------------


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
