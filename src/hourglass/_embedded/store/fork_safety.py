"""The fork lock: no fork happens in the middle of a library's work, or of anything else that a child must not get by halves.

Must not know: what the work is. A mutex that a thread of ours holds inside a library (a database's) at the instant of a
fork is held for ever in the child, where that thread does not exist, and the child's first use of the library hangs. So a
store does all such work inside `NO_FORK`, and a fork waits until no thread is inside: at most for one commit, or for one
portion of a copy. Whatever else must not be cut in two by a fork (a descriptor that is opened and noted) is done inside, too.

Invariants: each thread has a lock of its own, so that threads never wait for each other here, only a fork for them; a
thread may enter again while it is inside.
"""

from __future__ import annotations

import threading
import weakref
from time import sleep
from typing import ClassVar

from hourglass._forks import ForkStage, at_fork

_entrance = threading.Lock()
_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_taken: list[threading.RLock] = []


class ForkLock(threading.local):
    """`with NO_FORK.lock:` around everything that calls a database, and what is said above: each thread has its own."""

    fork_waits: ClassVar[bool] = False
    """Whether a fork waits: something long that can be begun anew had better stop, and go on after it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _entrance:
            _locks.add(self.lock)

    def pause(self, seconds: float) -> None:
        """Inside, between two portions of something long: a fork may happen meanwhile."""
        self.lock.release()
        try:
            sleep(seconds)
        finally:
            self.lock.acquire()


NO_FORK = ForkLock()


def _before_fork() -> None:
    # First the door: until the fork is over no thread that is new to `NO_FORK` can add a lock that is not taken here.
    _entrance.acquire()
    ForkLock.fork_waits = True
    for lock in list(_locks):
        lock.acquire()
        _taken.append(lock)


def _after_fork() -> None:
    # In the child, too: the forking thread took these locks, and is the one thread that exists there.
    for lock in _taken:
        lock.release()
    _taken.clear()
    ForkLock.fork_waits = False
    _entrance.release()


at_fork(ForkStage.STORE_MUTEXES, before=_before_fork, in_parent=_after_fork, in_child=_after_fork)
