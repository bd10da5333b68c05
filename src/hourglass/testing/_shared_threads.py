"""The event loops and threads that the environments of a process share, which makes environments cheap to create.

Each thread that uses environments has one event loop, which runs only while the test waits in an environment. The process
has one thread pool for `def` activities and one loop for `async def` activities. An asynchronous environment borrows a
thread, because fibers cannot move between threads. Must not know workflows.

Invariants:

- A loop is closed when its thread has ended, or at exit.
- A forked child creates its own loops and threads, and does not free inherited ones.
"""

from __future__ import annotations

import asyncio
import atexit
import threading

from hourglass._forks import ForkStage, at_fork, leak
from hourglass._worker.activities.activity_loop import LoopThread
from hourglass._worker.activities.activity_threads import ThreadPool
from hourglass._worker.daemon_executor import DaemonExecutor
from hourglass.errors import UsageError
from hourglass.testing._quiet_loop import QuietLoop

_MOST_THREADS = 200


class _Shared:
    """The loops and threads of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loops: dict[threading.Thread, QuietLoop] = {}
        self.threads = ThreadPool("hourglass-test-activity", _MOST_THREADS)
        self.activity_loop = LoopThread("hourglass-test-activity-loop")
        self.idle_runners: list[DaemonExecutor] = []
        """The threads of closed asynchronous environments, kept for the next ones."""


_shared = _Shared()


def current_loop() -> QuietLoop:
    """Return the event loop of the current thread."""
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "this thread runs an event loop, which an Environment would block: write `async with Environment() as env:` "
            "and await its methods (with pytest: the fixture hourglass_async_env)"
        )
    current = threading.current_thread()
    with _shared.lock:
        loop = _shared.loops.get(current)
        if loop is None:
            for thread in [owner for owner in _shared.loops if not owner.is_alive()]:
                _shared.loops.pop(thread).close()
            loop = _shared.loops[current] = QuietLoop()
        return loop


def activity_threads() -> ThreadPool:
    """Return the thread pool for `def` activities."""
    return _shared.threads


def activity_loop() -> LoopThread:
    """Return the event loop for `async def` activities."""
    return _shared.activity_loop


def borrow_runner() -> DaemonExecutor:
    """Return an executor with a single thread that no other environment uses."""
    with _shared.lock:
        return _shared.idle_runners.pop() if _shared.idle_runners else DaemonExecutor("hourglass-test", 1)


def return_runner(runner: DaemonExecutor) -> None:
    """Keep the thread of a closed environment for the next one."""
    with _shared.lock:
        _shared.idle_runners.append(runner)


def _exit() -> None:
    for loop in _shared.loops.values():
        if not loop.is_running():
            loop.close()


def _after_fork() -> None:
    global _shared
    leak(_shared)
    _shared = _Shared()


atexit.register(_exit)
at_fork(ForkStage.TESTING, in_child=_after_fork)
