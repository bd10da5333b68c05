"""The threads of asynchronous environments. Each thread serves one environment at a time, because fibers cannot move between
threads.

The thread of a closed environment is kept for the next one.
"""

from __future__ import annotations

import threading

from hourglass._forks import ForkStage, at_fork
from hourglass._worker.daemon_executor import DaemonExecutor

_idle: list[DaemonExecutor] = []
_lock = threading.Lock()


def borrow() -> DaemonExecutor:
    """Return an executor with a single thread that no other environment uses."""
    with _lock:
        return _idle.pop() if _idle else DaemonExecutor("hourglass-test", 1)


def give_back(runner: DaemonExecutor) -> None:
    """Keep the thread of a closed environment for the next one."""
    with _lock:
        _idle.append(runner)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _idle.clear()


at_fork(ForkStage.TESTING, in_child=_after_fork)
