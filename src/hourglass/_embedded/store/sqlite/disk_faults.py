"""What can go wrong with the file, and what it means: refuse one change, hold and try again, or give up and say what
to do.

Must not know: runs, events, threads. Invariants: every failure of SQLite becomes a `StorageError` that names the
file, what happened and what to do; no text of a statement and no value is ever part of it. Only failures that
leave the file as it was before the transaction are held; after an I/O error it is unknown what the disk has, and
the file must be opened anew. What is wrong with one change is never taken for a fault of the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import msgspec

from hourglass._embedded.store.store import NO_ROOM, Unwritable, another_users, epoch_is_over, free_bytes
from hourglass.errors import ServiceError, StorageError

_SHARED_MEMORY_SIZE = 4874
"""SQLITE_IOERR_SHMSIZE: no room to let the file beside the write-ahead log grow. Nothing was written."""

SMALLEST_ROOM = 1 << 16
"""A disk with less free, in bytes, is full: SQLite can make none of its files there."""

_HELD = {
    sqlite3.SQLITE_FULL: "there is no room left on its disk",
    sqlite3.SQLITE_BUSY: "another program holds its lock",
    sqlite3.SQLITE_LOCKED: "another program holds its lock",
    _SHARED_MEMORY_SIZE: "there is no room left on its disk",
}

EPOCH_IS_OVER = 1811
"""SQLITE_CONSTRAINT_TRIGGER: the only trigger that raises says that another process has begun an epoch of its own."""

_OF_ONE_CHANGE = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)

_ADVICE = {
    sqlite3.SQLITE_NOTADB: (
        "is not a database: name another file, or move this one away. It was not changed",
        "FAILED_PRECONDITION",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is corrupt: restore a backup, or save what can be read with `sqlite3 FILE .recover`",
        "DATA_LOSS",
    ),
    sqlite3.SQLITE_ERROR: (
        "is damaged: its tables are not what they should be. Restore a backup",
        "DATA_LOSS",
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "is damaged: what it holds contradicts itself. Restore a backup",
        "DATA_LOSS",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened: check that this user may read and write both it and its folder, and that its file "
        "system is not read-only",
        "FAILED_PRECONDITION",
    ),
    sqlite3.SQLITE_READONLY: (
        "cannot be written: the file, its folder or its file system is read-only, or belongs to another user",
        "FAILED_PRECONDITION",
    ),
    sqlite3.SQLITE_PERM: ("may not be used by this user: check its permissions", "PERMISSION_DENIED"),
    sqlite3.SQLITE_FULL: (NO_ROOM, "RESOURCE_EXHAUSTED"),
    sqlite3.SQLITE_BUSY: (
        "is locked by another program: only one may write to it at a time; end the other",
        "UNAVAILABLE",
    ),
    sqlite3.SQLITE_LOCKED: (
        "is locked by another program: only one may write to it at a time; end the other",
        "UNAVAILABLE",
    ),
    sqlite3.SQLITE_IOERR: (
        "cannot be trusted after an error of its disk: check the disk, then open the file anew",
        "UNAVAILABLE",
    ),
}

_OF_PERMISSIONS = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})


def storage_error(path: str, error: Exception) -> StorageError:
    """The failure as our users see it; the caller raises it from the original, or logs that."""
    if isinstance(error, StorageError):
        return error
    code, name = _code(error), _name(error)
    if code == EPOCH_IS_OVER:
        return epoch_is_over(path)
    if not code and isinstance(error, sqlite3.OperationalError) and "decode" in str(error):
        return StorageError(f"the file {path} is damaged: a text in it is not UTF-8", status="DATA_LOSS")
    kind = sqlite3.SQLITE_FULL if _is_want_of_room(path, code) else code & 0xFF
    advice, status = _ADVICE.get(kind, ("cannot be used", "UNAVAILABLE"))
    whose = another_users(path, os.path.dirname(path)) if kind in _OF_PERMISSIONS else ""
    return StorageError(f"the file {path} {advice} ({name}){whose}", status=status)


def is_of_one_change(error: Exception) -> bool:
    """Whether a failure says something about what was to be written, and nothing about the file."""
    if isinstance(error, Unwritable):
        return True
    if isinstance(error, (StorageError, OSError, MemoryError)):
        return False
    if not isinstance(error, sqlite3.Error):
        return True  # it could not be encoded, or not be bound
    code = _code(error)
    if code:
        return code & 0xFF in _OF_ONE_CHANGE and code != EPOCH_IS_OVER
    return isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError))


def unwritable(path: str, what: str, error: Exception) -> Unwritable:
    """Such a failure, for the calls that wait for the change; `what` names the runs that it is about."""
    if isinstance(error, Unwritable):
        return error
    why = (
        "a row of it would be larger than SQLite's rows can be"
        if _code(error) == sqlite3.SQLITE_TOOBIG
        else ""
    )
    return Unwritable(
        f"{what} cannot be written to {path}: {why or _name(error)}. Nothing of this change was kept",
        status="INVALID_ARGUMENT",
    )


def _is_want_of_room(path: str, code: int) -> bool:
    """Whether a file could not be read or opened only because there is no room: SQLite needs some beside it, and
    calls the want of it an error of the disk, or a file that cannot be opened.
    """
    if code == _SHARED_MEMORY_SIZE:
        return True
    if code & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    free = free_bytes(path)
    return free is not None and free < SMALLEST_ROOM


def reason_to_hold(error: Exception) -> str:
    """Why a commit that failed like this can be tried again; "" if it cannot."""
    code = _code(error)
    return _HELD.get(code) or _HELD.get(code & 0xFF, "")


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Turn what SQLite and decoding raise inside into `StorageError`."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(path, error) from error
    except OverflowError as error:
        raise ServiceError("a number is larger than 64 bits", status="INVALID_ARGUMENT") from error
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
    ) as error:  # bytes that are none of ours, or no bytes
        raise StorageError(
            f"the file {path} holds something that this version cannot read: {error}", status="DATA_LOSS"
        ) from error


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0)


def _name(error: Exception) -> str:
    return str(getattr(error, "sqlite_errorname", "") or type(error).__name__)


class Identity(msgspec.Struct, frozen=True):
    """Which file a path leads to, whatever it is called."""

    device: int
    inode: int

    @staticmethod
    def of(path: str) -> Identity:
        """The file at a path now. Asks for its status only: it is never opened here."""
        status = os.stat(path)
        return Identity(status.st_dev, status.st_ino)


_LOOK_EVERY = 1.0
"""Seconds."""


class DiskWatch:
    """The room on the disk of a file; looked at now and then, by one thread."""

    def __init__(self, path: str, reserve_bytes: int) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._next_look = 0.0
        self._shortage = ""

    def shortage(self) -> str:
        """Why no new work should be taken; "" if there is room."""
        if self._is_time():
            self._shortage = self._look()
        return self._shortage

    def free_bytes(self) -> int | None:
        """How much is free; None if the system does not say."""
        return free_bytes(self._path)

    def _is_time(self) -> bool:
        now = monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY
        return True

    def _look(self) -> str:
        free = free_bytes(self._path)
        if free is None or free >= self._reserve_bytes:
            return ""  # no answer is no reason to refuse work: a commit that fails will tell
        return (
            f"only {free >> 20} MiB are free on the disk of {self._path}; new workflows are refused below "
            f"{self._reserve_bytes >> 20} MiB, so that those that run can go on"
        )
