"""Registry of open connections, which protects the files that a process has open from its forked children.

SQLite's mutexes belong to the process, not to a file; all our work with SQLite runs inside `NO_FORK` (`fork_safety`). A
connection that is used, closed or freed in a child can destroy the file, or hang on a lock that a thread of the parent
held. A child cannot even open the same file again: SQLite records per process which locks it holds on a file. The child
inherits the record but not the locks, and would read and write without any. `keep` and `close` therefore track the open
connections.

Invariant: in a child every inherited connection is leaked permanently, and opening a file that the parent had open is
rejected.
"""

from __future__ import annotations

import contextlib
import ctypes
import sqlite3
from collections.abc import Callable

from hourglass._embedded.store.sqlite.disk_faults import Identity
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

_open: dict[int, tuple[sqlite3.Connection, Identity, str]] = {}
_inherited: set[Identity] = set()
_retired: list[tuple[Callable[[], object], Identity]] = []
_stale: set[Identity] = set()


def keep(connection: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Register a connection until `close` closes it."""
    _open[id(connection)] = (connection, Identity.of(path), path)
    return connection


def close(connection: sqlite3.Connection) -> None:
    """Close a registered connection. Do nothing for a connection that was inherited."""
    if _open.pop(id(connection), None) is not None:
        connection.close()
        _close_retired()


def retire(close_file: Callable[[], object], identity: Identity) -> None:
    """Close a descriptor of a database, or of a file beside it, by calling `close_file` as soon as this process has no
    connection to that database.

    Closing it earlier would drop all POSIX locks that SQLite holds on the file in this process.
    """
    _retired.append((close_file, identity))
    _close_retired()


def _close_retired() -> None:
    used = {identity for _, identity, _ in _open.values()}
    for entry in [entry for entry in _retired if entry[1] not in used]:
        _retired.remove(entry)
        with contextlib.suppress(OSError):
            entry[0]()


def _identity(path: str) -> Identity | None:
    try:
        return Identity.of(path)
    except OSError:
        return None


def mark_stale(identity: Identity) -> None:
    """Reject further connections to a database until all current ones are closed, because the database's log was
    deleted.

    The connections of a process share the index of a log, so a new connection would use the deleted log's index.
    """
    _stale.add(identity)


def reject_stale(path: str) -> None:
    """Raise `StorageError` if this process still has connections to a database whose log was deleted."""
    identity = _identity(path)
    if identity in _stale:
        if any(used == identity for _, used, _ in _open.values()):
            raise StorageError(
                f"the write-ahead log of {path} was deleted. This process still reads the file for a backup or a list; "
                "the file is reopened when that has finished",
                status="UNAVAILABLE",
            )
        _stale.discard(identity)


def reject_inherited(path: str) -> None:
    """Raise `StorageError` if the process from which this one was forked had the file open."""
    identity = _identity(path)
    if identity in _inherited:
        raise StorageError(
            f"the file {path} was open when this process was forked, so this process cannot open it safely: "
            f"fork before connecting, or start the process with `spawn`",
            status="FAILED_PRECONDITION",
        )


def reject_second_name(path: str) -> None:
    """Raise `StorageError` if this process has the file open under another name.

    SQLite would use the log of one name with the index of the other.
    """
    identity = _identity(path)
    names = {name for _, used, name in _open.values() if used == identity}
    if names and path not in names:
        raise StorageError(
            f"the file {path} is already open in this process as {min(names)}: use that path",
            status="FAILED_PRECONDITION",
        )


def _forget_inherited() -> None:
    for connection, identity, _ in _open.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # never freed, not even at exit
        _inherited.add(identity)
    _open.clear()
    _retired.clear()


at_fork(ForkStage.STORE_CONNECTIONS, in_child=_forget_inherited)
