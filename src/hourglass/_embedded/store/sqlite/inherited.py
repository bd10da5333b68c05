"""The connections that are open, and what becomes of them in a forked child: it leaves alone the files that its parent has open.

SQLite's mutexes belong to the process, not to a file: all our work with SQLite is done inside `NO_FORK` (`fork_safety`).
A connection that is used, closed or freed in a child can destroy the file or hang on a lock that a thread of the
parent held. And a child cannot even open the same file anew: SQLite remembers per process which locks it holds on a
file, the memory is inherited, the locks are not; so the child would read and write without any. `keep` and `close`
therefore know the open connections.

Invariant: in a child every inherited connection is leaked for ever, and opening a file that the parent had open is refused.
"""

from __future__ import annotations

import ctypes
import sqlite3

from hourglass._embedded.store.sqlite.disk_faults import Identity
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

_open: dict[int, tuple[sqlite3.Connection, Identity]] = {}
_inherited: set[Identity] = set()


def keep(connection: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Remember a connection until it is closed by `close`."""
    _open[id(connection)] = (connection, Identity.of(path))
    return connection


def close(connection: sqlite3.Connection) -> None:
    """Close a connection that is ours; one that was inherited is left alone."""
    if _open.pop(id(connection), None) is not None:
        connection.close()


def refuse_inherited(path: str) -> None:
    """Raise `StorageError` if the process that this one was forked from had the file open."""
    try:
        identity = Identity.of(path)
    except OSError:
        return
    if identity in _inherited:
        raise StorageError(
            f"the file {path} was open when this process was forked, so this process cannot open it safely: "
            f"fork before connecting, or start the process with `spawn`",
            status="FAILED_PRECONDITION",
        )


def _forget_inherited() -> None:
    for connection, identity in _open.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # never freed, not at exit either
        _inherited.add(identity)
    _open.clear()


at_fork(ForkStage.STORE_CONNECTIONS, in_child=_forget_inherited)
