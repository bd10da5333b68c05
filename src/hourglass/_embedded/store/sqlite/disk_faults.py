"""Failures of the database file and the reaction to each: reject one change, hold all changes and retry, or stop with
advice for the operator.

Must not know: runs, events, threads. Invariants: every SQLite failure becomes a `StorageError` that names the file,
the failure and the remedy, and never contains SQL or values. Only failures that leave the file as it was before the
transaction are retried; after an I/O error the content of the disk is unknown, and the file must be reopened. A
problem with a single change is never reported as a fault of the file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import msgspec

from hourglass._embedded.store.store import DISK_FULL, Unwritable, epoch_is_over, free_bytes, ownership_hint
from hourglass.errors import HourglassError, ServiceError, StorageError

_SHARED_MEMORY_SIZE = 4874
"""SQLITE_IOERR_SHMSIZE: no room to extend the log's index. Nothing was written."""

SMALLEST_ROOM = 1 << 16
"""Free bytes below which a disk counts as full, because SQLite cannot create any of its files."""

_RETRYABLE = {
    sqlite3.SQLITE_FULL: "its disk has no space left",
    sqlite3.SQLITE_BUSY: "another program holds its lock",
    sqlite3.SQLITE_LOCKED: "another program holds its lock",
    _SHARED_MEMORY_SIZE: "its disk has no space left",
}

EPOCH_IS_OVER = 1811
"""SQLITE_CONSTRAINT_TRIGGER. The only trigger that raises reports that another process has begun an epoch."""

_CHANGE_ERRORS = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE}
)

_ADVICE = {
    sqlite3.SQLITE_NOTADB: (
        "is not a database: choose another path, or move this file away. It was not changed",
        "FAILED_PRECONDITION",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is corrupt: restore a backup, or save what can be read with `sqlite3 FILE .recover`",
        "DATA_LOSS",
    ),
    sqlite3.SQLITE_ERROR: (
        "is damaged: tables or columns are missing. Restore a backup",
        "DATA_LOSS",
    ),
    sqlite3.SQLITE_CONSTRAINT: (
        "is damaged: its content is inconsistent. Restore a backup",
        "DATA_LOSS",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened: check that this user may read and write the file and its directory, and that the file system "
        "is not read-only",
        "FAILED_PRECONDITION",
    ),
    sqlite3.SQLITE_READONLY: (
        "cannot be written: the file, its directory or its file system is read-only or belongs to another user",
        "FAILED_PRECONDITION",
    ),
    sqlite3.SQLITE_PERM: ("cannot be used by this user: check its permissions", "PERMISSION_DENIED"),
    sqlite3.SQLITE_FULL: (DISK_FULL, "RESOURCE_EXHAUSTED"),
    sqlite3.SQLITE_BUSY: (
        "is locked by another program: end that program, or close its transaction",
        "UNAVAILABLE",
    ),
    sqlite3.SQLITE_IOERR: (
        "may be damaged after an I/O error: check the disk, then reopen the file",
        "UNAVAILABLE",
    ),
}

_ADVICE[sqlite3.SQLITE_LOCKED] = _ADVICE[sqlite3.SQLITE_BUSY]

_PERMISSION_ERRORS = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM})


def storage_error(path: str, error: Exception) -> StorageError:
    """Convert a failure to the `StorageError` for users. The caller must raise it from the original error, or log the
    original.
    """
    if isinstance(error, StorageError):
        return error
    code, name = _code(error), _name(error)
    if code == EPOCH_IS_OVER:
        return epoch_is_over(path)
    if not code and isinstance(error, sqlite3.OperationalError) and "decode" in str(error):
        return StorageError(f"the file {path} is damaged: a string in it is not UTF-8", status="DATA_LOSS")
    kind = sqlite3.SQLITE_FULL if _is_out_of_space(path, code) else code & 0xFF
    advice, status = _ADVICE.get(kind, ("cannot be used", "UNAVAILABLE"))
    hint = ownership_hint(path, os.path.dirname(path)) if kind in _PERMISSION_ERRORS else ""
    return StorageError(f"the file {path} {advice} ({name}){hint}", status=status)


def is_of_one_change(error: Exception) -> bool:
    """Whether a failure concerns the data to be written, and not the file."""
    if isinstance(error, Unwritable):
        return True
    if isinstance(error, (StorageError, OSError, MemoryError)):
        return False
    if not isinstance(error, sqlite3.Error):
        return True  # the data could not be encoded or bound
    code = _code(error)
    if code:
        return code & 0xFF in _CHANGE_ERRORS and code != EPOCH_IS_OVER
    return isinstance(error, (sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError))


def unwritable(path: str, what: str, error: Exception) -> Unwritable:
    """Return the error for calls that wait for a change whose write failed. `what` names the change's runs and
    schedules.
    """
    if isinstance(error, Unwritable):
        return error
    why = (
        "one of its rows would exceed SQLite's maximum row size"
        if _code(error) == sqlite3.SQLITE_TOOBIG
        else ""
    )
    return Unwritable(
        f"a change of {what} cannot be written to {path}: {why or _name(error)}. The whole change was discarded",
        status="INVALID_ARGUMENT",
    )


def _is_out_of_space(path: str, code: int) -> bool:
    """Whether reading or opening a file failed only for lack of space.

    SQLite needs space for additional files, and reports a full disk as a disk error or as a file that cannot be opened.
    """
    if code == _SHARED_MEMORY_SIZE:
        return True
    if code & 0xFF not in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return False
    free = free_bytes(path)
    return free is not None and free < SMALLEST_ROOM


def reason_to_hold(error: Exception) -> str:
    """Return the reason to hold all changes and retry a failed commit; "" if a retry is not possible."""
    code = _code(error)
    return _RETRYABLE.get(code) or _RETRYABLE.get(code & 0xFF, "")


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Convert the errors of SQLite and of decoding into `StorageError`."""
    try:
        yield
    except READ_ERRORS as error:
        raise read_error(path, error) from error


READ_ERRORS = (sqlite3.Error, OverflowError, ValueError, TypeError, LookupError, AttributeError)
"""The errors of SQLite and of decoding."""


def read_error(path: str, error: Exception) -> HourglassError:
    """Return one of the `READ_ERRORS` in the form for callers."""
    if isinstance(error, sqlite3.Error):
        return storage_error(path, error)
    if isinstance(error, OverflowError):
        return ServiceError("a number does not fit into 64 bits", status="INVALID_ARGUMENT")
    # Damaged bytes, or bytes of another version.
    return StorageError(
        f"the file {path} contains data that this version cannot read: {error}", status="DATA_LOSS"
    )


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0) or 0)


def _name(error: Exception) -> str:
    names = getattr(error, "sqlite_errorname", ""), getattr(error, "strerror", ""), type(error).__name__
    return next(str(name) for name in names if name)


class Identity(msgspec.Struct, frozen=True):
    """The identity of a file, independent of its name."""

    device: int
    inode: int

    @staticmethod
    def of(path: str) -> Identity:
        """Return the identity of the file at a path. Does not open the file."""
        status = os.stat(path)
        return Identity(status.st_dev, status.st_ino)


_CHECK_SECONDS = 1.0
"""Seconds between two checks of the free space."""


class DiskWatch:
    """A watch on the free space of a file's disk. Must be used by one thread only."""

    def __init__(self, path: str, reserve_bytes: int) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._next_check = 0.0
        self._shortage = ""

    def shortage(self) -> str:
        """Return the reason to reject new work; "" if there is enough space."""
        now = monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            self._shortage = self._check()
        return self._shortage

    def free_bytes(self) -> int | None:
        """Return the free bytes; None if the system does not report them."""
        return free_bytes(self._path)

    def _check(self) -> str:
        free = self.free_bytes()
        if free is None or free >= self._reserve_bytes:
            return ""  # unknown is no reason to reject work: a failing commit will report the problem
        return (
            f"only {free >> 20} MiB are free on the disk of {self._path}; below {self._reserve_bytes >> 20} MiB no new "
            "workflows are accepted, so that running ones can continue. Free some space"
        )
