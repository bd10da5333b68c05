"""Copies of a database in use, and files that appear under their path only when they are complete.

Must not know: tables (except the epoch), which process owns a file. Invariants: a copy is a consistent snapshot,
because a read transaction is open while SQLite's online backup copies the pages in portions; the owner's commits
neither disturb the copy nor wait for it; a copy appears complete, checked and synced, or not at all; an existing file
is overwritten only on request; only the users who can read the original can read the copy.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sqlite3
import stat
from collections.abc import Callable
from typing import TypeAlias

from hourglass._embedded.store.fork_safety import NO_FORK
from hourglass._embedded.store.sqlite.disk_faults import storage_errors
from hourglass.errors import StorageError

_PORTION = 512
"""The number of pages that are copied at a time."""
_PAUSE = 0.002
"""Seconds between portions, so that commits can use the disk, and other threads the interpreter."""


Progress: TypeAlias = Callable[[int, int], object]
"""A callback that receives the number of copied pages and the number of all pages."""


def copy_database(
    connection: sqlite3.Connection,
    dest: str,
    *,
    overwrite: bool,
    source: str = "",
    progress: Progress | None = None,
) -> None:
    """Copy the database, in the state that the connection sees now, to a new file."""
    _check_destination(dest, overwrite, source)
    # The name includes the host name, because processes in different containers often have the same process id.
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
        raise _rejected_copy(dest, "already exists; pass overwrite=True to replace it") from error
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
            os.link(draft, path)  # unlike a rename, a link never replaces a file
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(path):  # the file system has no hard links
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
            # The first read takes the snapshot. Without the snapshot, each commit of a busy writer would restart the
            # copy.
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            connection.backup(target, pages=_PORTION, progress=pause)
        finally:
            connection.execute("ROLLBACK")
        _begin_another_epoch(target)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()  # a single file, without a WAL
        problems = target.execute("PRAGMA integrity_check(1)").fetchall()
        if problems != [("ok",)]:
            raise StorageError(
                "the file is damaged: its copy failed SQLite's integrity check and was deleted",
                status="DATA_LOSS",
            )
    finally:
        target.close()


def _begin_another_epoch(target: sqlite3.Connection) -> None:
    """Set an epoch that the original will never have, so that no owner and no WAL of the original is used with the
    copy.
    """
    with contextlib.suppress(sqlite3.OperationalError):  # a file of another format has no such table
        target.execute(
            "UPDATE meta SET value = value + ? WHERE name = 'epoch'", (1 + secrets.randbelow(1 << 32),)
        )


def _check_destination(dest: str, overwrite: bool, source: str) -> None:
    folder = os.path.dirname(dest) or "."
    if not os.path.isdir(folder):
        raise _rejected_copy(dest, f"cannot be created: the directory {folder} does not exist")
    if os.path.isdir(dest):
        raise _rejected_copy(dest, "is a directory: pass the path of a file")
    if os.path.lexists(dest) and not overwrite:
        raise _rejected_copy(dest, "already exists; pass overwrite=True to replace it")
    if source and os.path.exists(dest) and os.path.samefile(source, dest):
        raise _rejected_copy(dest, "has the same path as the original file: choose another path")
    if os.path.lexists(f"{dest}-wal"):
        raise _rejected_copy(
            dest,
            f"has a write-ahead log ({dest}-wal): a process is using the file, or was killed. Choose another path",
        )


def _rejected_copy(dest: str, reason: str) -> StorageError:
    return StorageError(f"the copy cannot be made: {dest} {reason}", status="FAILED_PRECONDITION")


def _remove(draft: str) -> None:
    for leftover in (draft, f"{draft}-journal"):
        with contextlib.suppress(OSError):
            os.unlink(leftover)
