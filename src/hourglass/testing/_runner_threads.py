"""The threads of asynchronous environments: each serves one environment at a time, as fibers cannot leave a thread.

A thread is kept for the next environment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from hourglass._forks import ForkStage, at_fork

T = TypeVar("T")


class RunnerThread:
    """A daemon thread that calls functions one after another."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="hourglass-test", daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Call a function on the thread, in its turn."""
        future: Future[T] = Future()
        self._work.put((future, work))
        return future

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work


_idle: list[RunnerThread] = []
_lock = threading.Lock()


def borrow() -> RunnerThread:
    """Return a thread that no other environment uses."""
    with _lock:
        return _idle.pop() if _idle else RunnerThread()


def give_back(runner: RunnerThread) -> None:
    """Return a thread whose environment is closed, for the next one."""
    with _lock:
        _idle.append(runner)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _idle.clear()


at_fork(ForkStage.TESTING, in_child=_after_fork)
