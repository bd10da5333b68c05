"""Forks and SQLite: no fork happens in the middle of SQLite's work, or of anything else that a child must not get by
halves; and a child leaves alone the files that its parent has open.

Must not know: what the work is. SQLite's mutexes belong to the process, not to a file. One that a thread of ours
holds at the instant of a fork is held for ever in the child, where that thread does not exist, and the child's first
use of SQLite hangs, on whatever file. So all our work with SQLite is done inside `NO_FORK`, and a fork waits until no
thread is inside: at most for one commit, or for one portion of a copy. Whatever else must not be cut in two by a fork
(a descriptor that is opened and noted) is done inside, too.

A connection that is used, closed or freed in a child can destroy the file or hang on a lock that a thread of the
parent held. And a child cannot even open the same file anew: SQLite remembers per process which locks it holds on a
file, the memory is inherited, the locks are not; so the child would read and write without any. `keep` and `close`
therefore know the open connections.

Invariants: each thread has a lock of its own, so that threads never wait for each other here, only a fork for them; a
thread may enter again while it is inside; in a child every inherited connection is leaked for ever, and opening a
file that the parent had open is refused.
"""

from __future__ import annotations

import ctypes
import sqlite3
import threading
import time
import weakref
from types import TracebackType

from hourglass._embedded.store.disk_faults import Identity
from hourglass._forks import ForkStage, at_fork
from hourglass.errors import StorageError

# --- the fork lock ------------------------------------------------------------------------------------------

_entrance = threading.Lock()
_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_taken: list[threading.RLock] = []


class _Mine(threading.local):
    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _entrance:
            _locks.add(self.lock)


class ForkLock:
    """`with NO_FORK:` around everything that calls SQLite, and what is said above."""

    fork_waits = False
    """Whether a fork waits: something long that can be begun anew had better stop, and go on after it."""

    def __init__(self) -> None:
        self._mine = _Mine()

    def __enter__(self) -> None:
        self._mine.lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mine.lock.release()

    def pause(self, seconds: float) -> None:
        """Inside, between two portions of something long: a fork may happen meanwhile."""
        self._mine.lock.release()
        try:
            time.sleep(seconds)
        finally:
            self._mine.lock.acquire()


NO_FORK = ForkLock()


def _before_fork() -> None:
    # First the door: until the fork is over no thread that is new to `NO_FORK` can add a lock that is not taken here.
    _entrance.acquire()
    NO_FORK.fork_waits = True
    for lock in list(_locks):
        lock.acquire()
        _taken.append(lock)


def _after_fork() -> None:
    # In the child, too: the forking thread took these locks, and is the one thread that exists there.
    for lock in _taken:
        lock.release()
    _taken.clear()
    NO_FORK.fork_waits = False
    _entrance.release()


at_fork(ForkStage.SQLITE_MUTEXES, before=_before_fork, in_parent=_after_fork, in_child=_after_fork)


# --- connections that a child inherits ----------------------------------------------------------------------

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


at_fork(ForkStage.SQLITE_CONNECTIONS, in_child=_forget_inherited)
