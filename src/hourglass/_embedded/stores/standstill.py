"""No fork in the middle of SQLite's work, nor of anything else that a child must not inherit by halves.

SQLite's mutexes belong to the process, not to a file. One that a thread of ours holds at the instant of a fork is
held for ever in the child, where that thread does not exist, and the child's first use of SQLite hangs, on whatever
file. So all our work with SQLite is done inside `WORK`, and a fork waits until nobody is inside: at most for one
commit, or for one portion of a copy. Whatever else must not be cut in two by a fork (a descriptor that is opened and
noted) is done inside, too. Must not know: files, what the work is.

Invariants: each thread has a lock of its own, so that nobody but a fork ever waits for another; a thread may enter
again while it is inside.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from types import TracebackType

_entrance = threading.Lock()
_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_taken: list[threading.RLock] = []


class _Mine(threading.local):
    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _entrance:
            _locks.add(self.lock)


class Work:
    """`with WORK:` around everything that calls SQLite, and what is said above."""

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


WORK = Work()


def _before_fork() -> None:
    _entrance.acquire()
    WORK.fork_waits = True
    for lock in list(_locks):
        lock.acquire()
        _taken.append(lock)


def _after_fork() -> None:
    for lock in _taken:
        lock.release()
    _taken.clear()
    WORK.fork_waits = False
    _entrance.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
