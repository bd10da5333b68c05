"""A lock that prevents forks during work that a child process must not inherit unfinished.

Must not know: the kind of work. If one of our threads holds a mutex inside a library (a database) at the moment of a
fork, the mutex is locked forever in the child, where that thread does not exist, and the child's first use of the
library hangs. A store therefore does all such work inside `NO_FORK`, and a fork waits until no thread is inside: at
most for one commit, or one portion of a copy. Other work that a fork must not interrupt (opening a descriptor and
recording it) runs inside `NO_FORK`, too.

Invariants: each thread has its own lock, so that threads never wait for each other, and only a fork waits for them; the
lock is reentrant.
"""

from __future__ import annotations

import threading
import weakref
from time import sleep
from typing import ClassVar

from hourglass._forks import ForkStage, at_fork

_entrance = threading.Lock()
_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_acquired: list[threading.RLock] = []


class ForkLock(threading.local):
    """A lock for each thread. Use `with NO_FORK.lock:` around every database call, and around other work that a fork
    must not interrupt.
    """

    fork_waits: ClassVar[bool] = False
    """Whether a fork is waiting. Long work that can be restarted should then stop, and restart after the fork."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        with _entrance:
            _locks.add(self.lock)

    def pause(self, seconds: float) -> None:
        """Release the lock for this time between two portions of long work, so that a fork can happen."""
        self.lock.release()
        try:
            sleep(seconds)
        finally:
            self.lock.acquire()


NO_FORK = ForkLock()


def _before_fork() -> None:
    # `_entrance` is acquired first: until the fork is over, a thread that is new to `NO_FORK` cannot add a lock that is
    # not acquired here.
    _entrance.acquire()
    ForkLock.fork_waits = True
    for lock in list(_locks):
        lock.acquire()
        _acquired.append(lock)


def _after_fork() -> None:
    # Runs in the child, too: the forking thread acquired these locks, and is the only thread there.
    for lock in _acquired:
        lock.release()
    _acquired.clear()
    ForkLock.fork_waits = False
    _entrance.release()


at_fork(ForkStage.STORE_MUTEXES, before=_before_fork, in_parent=_after_fork, in_child=_after_fork)
