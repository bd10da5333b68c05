"""The executor for `asyncio.to_thread` and `run_in_executor` on the loops of Hourglass. Its threads do not keep
the process alive.

At exit, the interpreter joins the threads of every `ThreadPoolExecutor`, even daemon threads, without a
timeout. A single codec, or a blocking call of an activity, that never returns would keep the process alive
forever.
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
    """A `ThreadPoolExecutor` with threads that are abandoned at interpreter exit. Event loops require this base
    class.
    """

    def __init__(self, name: str, max_workers: int | None = None) -> None:
        super().__init__(max_workers, thread_name_prefix=name)
        self._name = name
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._gate = threading.Lock()
        self._idle = threading.Semaphore(0)  # one permit per thread that waits for a job
        self._threads_started: list[threading.Thread] = []
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in a thread."""
        future: Future[T] = Future()
        with self._gate:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._jobs.put((future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads_started) < self._max_workers:
                name = f"{self._name}-{len(self._threads_started) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads_started.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop accepting jobs. The threads end after the queued jobs."""
        with self._gate:
            if not self._is_shut_down:
                self._is_shut_down = True
                if cancel_futures:
                    self._cancel_queued()
                for _ in self._threads_started:
                    self._jobs.put(None)
        if wait:
            for thread in self._threads_started:
                thread.join()

    def _cancel_queued(self) -> None:
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
                self._idle.release()
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
            del job, future, call  # an idle thread must not keep references
