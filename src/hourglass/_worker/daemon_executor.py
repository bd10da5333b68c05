"""The executor behind `asyncio.to_thread` and `run_in_executor` on our loops: one whose threads keep no process alive.

The interpreter joins the threads of every `ThreadPoolExecutor` when it ends, daemons or not, without a limit: one codec or one
blocking call of an activity that never returns would keep the process for ever. Must not know what it runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """As its base, which event loops ask for, but what still runs at the end of the interpreter is left behind."""

    def __init__(self, name: str, max_workers: int | None = None) -> None:
        super().__init__(max_workers, thread_name_prefix=name)
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._resting = threading.Semaphore(0)  # one permit for each thread that waits for a job
        self._own: list[threading.Thread] = []
        self._over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in a thread."""
        future: Future[T] = Future()
        with self._gate:
            if self._over:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put((future, partial(fn, *args, **kwargs)))
            if not self._resting.acquire(blocking=False) and len(self._own) < self._max_workers:
                name = f"{self._name}-{len(self._own) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._own.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and let the threads end after those that wait."""
        with self._gate:
            if not self._over:
                self._over = True
                if cancel_futures:
                    self._drop()
                for _ in self._own:
                    self._jobs.put(None)
        if wait:
            for thread in self._own:
                thread.join()

    def _drop(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job[0].cancel()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                self._resting.release()
                job = self._jobs.get()
            if job is None:
                return
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del job, future, call  # a thread that rests holds nothing
