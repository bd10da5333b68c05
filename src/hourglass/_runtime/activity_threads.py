"""Where activities execute: threads for `def`, one event loop in its own thread for `async def`.

These threads run user code and nothing else of ours; they are daemons, for an activity that never returns
must not keep the process alive. They know nothing of activities: a job is a function, or a coroutine
function.

Invariants: what a job lets out is logged and ends nothing; the loop goes on even after a task raised
`SystemExit`, which asyncio lets through.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any

logger = logging.getLogger("hourglass.worker")

Job = Callable[[], None]


class ThreadPool:
    """Daemon threads, made as they are needed up to a limit, each taking one job at a time."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._stopped = False

    @property
    def size(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    def submit(self, job: Job) -> None:
        """Run a job as soon as a thread is free. One thread only may submit."""
        self._jobs.put(job)
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._limit:
            name = f"{self._name}-{len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let every thread end after the job it is at; waits for none."""
        if not self._stopped:
            self._stopped = True
            for _ in self._threads:
                self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:
                logger.exception("a job of %s let an exception out", self._name)
            del job  # a job that waited for the next one would keep its arguments alive
            self._idle.release()


class LoopThread:
    """An event loop in a daemon thread of its own, for coroutines of the user's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopping = False

    def submit(
        self, start: Callable[[], Coroutine[Any, Any, None]], started: Callable[[asyncio.Task[None]], None]
    ) -> None:
        """Run a coroutine on the loop; `started` is told the task, in the loop's thread, before it begins."""
        loop = self._ensure()

        def begin() -> None:
            task = loop.create_task(start())
            started(task)

        loop.call_soon_threadsafe(begin)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call something in the loop's thread, if the loop runs."""
        if self._loop is not None and not self._stopping:
            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancel what still runs and end the loop; waits for nothing."""
        if self._loop is not None and not self._stopping:
            self._stopping = True
            self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end after `stop`; True if it has ended."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._stopping:
            try:
                loop.run_forever()
            except BaseException as error:
                logger.error(
                    "a task of an activity raised %s; the activity loop goes on", type(error).__name__
                )
        try:
            self._cancel_rest(loop)
        finally:
            loop.close()

    def _cancel_rest(self, loop: asyncio.AbstractEventLoop) -> None:
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        with contextlib.suppress(BaseException):
            if rest:
                loop.run_until_complete(asyncio.wait(rest, timeout=1.0))
            loop.run_until_complete(loop.shutdown_asyncgens())
