"""A mark on a write-ahead log that identifies its database, so that the log of a killed owner is not applied to another
file.

SQLite finds a log by its name and applies it to the database beside it. If a backup is restored over the file of a
killed owner, beside its log, the result would be a mixture of both. The mark is an extended attribute of the log. It
contains the inodes of the database and of the log, and the range of epochs that the database can have without the log.
A log that was copied together with its database has another inode, and its mark is ignored. Without extended attributes
(macOS, some file systems) there is no mark.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable

import msgspec

from hourglass.errors import StorageError

_NAME = "user.hourglass.database"


class LogMark(msgspec.Struct, frozen=True):
    """The identity of a log's database, and of the log itself. `epoch` is the epoch that began when the log was opened;
    `epoch_in_file` is the epoch in the database at that time.
    """

    database: int
    log: int
    epoch_in_file: int
    epoch: int


def mark_log(path: str, *, epoch_in_file: int, epoch: int) -> None:
    """Mark the log of an open database as belonging to it."""
    log = f"{path}-wal"
    with contextlib.suppress(OSError, AttributeError):  # not every system has extended attributes
        mark = LogMark(os.stat(path).st_ino, os.stat(log).st_ino, epoch_in_file, epoch)
        os.setxattr(log, _NAME, msgspec.json.encode(mark))


def check_inode(path: str) -> None:
    """Raise `StorageError` if the log beside a database belongs to another inode. Safe while an owner has the database
    open.
    """
    mark = _read_mark(path)
    if mark is not None and mark.database != os.stat(path).st_ino:
        raise _foreign_log(path)


def check_log(path: str, connect: Callable[[str, str], sqlite3.Connection]) -> None:
    """Raise `StorageError` if the log beside a database belongs to another file or to another state of this file.

    Must be called while no process has the file open for writing.
    """
    check_inode(path)
    mark = _read_mark(path)
    epoch = None if mark is None else _read_epoch(path, connect)
    if mark is not None and epoch is not None and not mark.epoch_in_file <= epoch <= mark.epoch:
        raise _foreign_log(path)


def check_left_behind(path: str, connection: sqlite3.Connection) -> None:
    """Raise `StorageError` if a database was last opened under another name and its log is still beside that name.

    Either the database was moved without its log, or it is now being opened through another of its hard links.
    """
    try:
        rows = connection.execute("SELECT value FROM meta WHERE name = 'opened_as'").fetchall()
    except sqlite3.Error:
        return  # another check reports this
    name = os.fsdecode(rows[0][0]) if rows and isinstance(rows[0][0], bytes) else path
    mark = None if _have_same_log(name, path) else _read_mark(name)
    if mark is not None and mark.database == os.stat(path).st_ino:
        raise StorageError(
            f"the file {path} was last used as {name}, and {name}-wal still contains the latest changes. Nothing was "
            f"changed. If the file was moved, also move that log to {path}-wal; otherwise open the file as {name} "
            "first. To discard the changes in the log, delete it",
            status="FAILED_PRECONDITION",
        )


def _have_same_log(name: str, path: str) -> bool:
    """Whether two names of a database share one log, as in a folder that is mounted twice."""
    with contextlib.suppress(OSError):
        return name == path or os.path.samefile(f"{name}-wal", f"{path}-wal")
    return False


def _read_mark(path: str) -> LogMark | None:
    """Return the mark of the log beside a database; None without a mark, or if the log is empty or a copy."""
    log = f"{path}-wal"
    try:
        status = os.stat(log)
        mark = msgspec.json.decode(os.getxattr(log, _NAME), type=LogMark)
    except (OSError, AttributeError, msgspec.MsgspecError):
        return None
    return mark if status.st_size > 0 and mark.log == status.st_ino else None


def _read_epoch(path: str, connect: Callable[[str, str], sqlite3.Connection]) -> int | None:
    """Return the epoch in the database without its log; None if the epoch is unreadable. Another check reports that."""
    try:
        connection = connect(path, "ro&immutable=1")
    except StorageError:
        return None
    try:
        ((epoch,),) = connection.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchall()
        return int(epoch)
    except (sqlite3.Error, ValueError, TypeError):
        return None
    finally:
        connection.close()


def _foreign_log(path: str) -> StorageError:
    return StorageError(
        f"the file {path} was replaced or restored, but the log {path}-wal belongs to the previous file. Opening the "
        f"file would destroy both; nothing was changed. To use the file without the log, move {path}-wal and {path}-shm "
        "to another directory. To use the log, put the previous file back",
        status="FAILED_PRECONDITION",
    )
