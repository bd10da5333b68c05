"""Threads for user code. They are started on demand, and replaced when they are lost to code that does not
return.

They run only user code. They are daemon threads, so that an activity that never returns does not keep the
process alive.

Must not know: activities. A job is a function. Threads are woken one at a time: a thread that receives a job
wakes the next thread before it begins, if more jobs are queued. When the job waits, it releases the GIL to that
thread. Very short jobs are executed one after another by the first thread, without switching threads.

Invariants:

- While jobs are queued, a thread has been woken, or will be woken at the end of the event loop iteration that
  submitted the jobs, or the maximum number of threads is busy.
- An exception that a job raises is logged and does not end its thread. A thread that ends for another reason is
  replaced.
- A job that is given up keeps its thread, which ends when the job returns. Another thread replaces the lost
  thread, so that the pool always has the full number of usable threads. The number of lost threads is limited.
- A process that a job forked does not execute further jobs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from enum import Enum, auto
from typing import Any

import msgspec

from hourglass import _forks
from hourglass._worker.activities.attempts import AttemptWork
from hourglass._worker.activities.invocation import end_fork
from hourglass._worker.health.stacks import frame_of, take_stack

logger = logging.getLogger("hourglass.worker")

Job = Callable[..., object]


class _ThreadState(Enum):
    WAITING = auto()
    RUNNING = auto()
    LOST = auto()
    OVER = auto()


class PooledJob(msgspec.Struct, AttemptWork, eq=False):
    """A job that was submitted to a pool. Only the pool changes its state."""

    pool: ThreadPool
    job: Job | None
    arguments: tuple[Any, ...]
    state: _ThreadState = _ThreadState.WAITING
    pool_thread: _PoolThread | None = None

    def abandon(self) -> bool:
        """Give up this job; see `ThreadPool.abandon`."""
        return self.pool.abandon(self)

    def stack(self) -> str:
        """Return the stack of the job's thread, or "" if it has none."""
        pool_thread = self.pool_thread
        return "" if pool_thread is None else take_stack(frame_of(pool_thread.thread.ident)).text


class _PoolThread:
    """A thread of a pool, its current job, and the lock that wakes it."""

    __slots__ = ("bell", "entry", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread
        self.entry: PooledJob | None = None
        # The idle thread blocks on this lock until a caller that has removed it from the idle threads releases the
        # lock. This is cheaper than a condition.
        self.bell = threading.Lock()
        self.bell.acquire()


class ThreadPool:
    """A pool of daemon threads, started on demand up to a limit.

    `_wake_one`, `_has_room`, `_start_thread` and `_end_job` must be called with the lock acquired. `_work`,
    `_next_job`, `_run` and `_ended` run in the threads of the pool.
    """

    def __init__(self, name: str, limit: int, *, most_lost: int | None = None) -> None:
        self._name = name
        self._limit = limit
        self._most_lost = limit if most_lost is None else most_lost
        self._jobs: deque[PooledJob] = deque()
        self._lock = threading.Lock()
        self._threads: set[_PoolThread] = set()
        self._idle: list[_PoolThread] = []
        self._woken: set[_PoolThread] = set()  # woken or started, and not running yet
        self._will_wake = False  # whether a thread will be woken at the end of the current loop iteration
        self._started = 0
        self._lost = 0
        self._stopped = False

    @property
    def size(self) -> int:
        """The number of usable threads."""
        return len(self._threads)

    @property
    def lost(self) -> int:
        """The number of threads that execute jobs that were given up."""
        return self._lost

    def submit(self, job: Job, *arguments: Any) -> PooledJob:
        """Run `job(*arguments)` as soon as a thread is free."""
        entry = PooledJob(self, job, arguments)
        with self._lock:
            self._jobs.append(entry)
            if self._woken or self._will_wake:
                return (
                    entry  # a thread has been woken, or will be soon, and wakes another thread for this job
                )
            loop = asyncio._get_running_loop() if self._idle else None
            if loop is not None:
                # A thread that is woken before this iteration of the loop has ended would only wait for the
                # GIL.
                self._will_wake = True
                loop.call_soon(self._wake_now)
                return entry
            try:
                self._wake_one()
            except BaseException:
                self._jobs.remove(entry)
                raise
        return entry

    def _wake_now(self) -> None:
        with self._lock:
            self._will_wake = False
            self._wake_one()

    def abandon(self, entry: PooledJob) -> bool:
        """Drop a queued job, or replace the thread of a running job.

        Return False if the job is running and the maximum number of threads is already lost.
        """
        with self._lock:
            if entry.state is _ThreadState.WAITING:
                # The entry stays in the queue without its job. A thread that receives the entry skips it.
                entry.state = _ThreadState.OVER
                entry.job, entry.arguments = None, ()
            elif entry.state is _ThreadState.RUNNING:
                if self._lost >= self._most_lost:
                    return False
                entry.state = _ThreadState.LOST
                self._lost += 1
                if entry.pool_thread is not None:
                    self._threads.discard(entry.pool_thread)
                self._wake_one()
            return True

    def stop(self) -> None:
        """End all threads after the queued jobs, without waiting."""
        with self._lock:
            self._stopped = True
            for pool_thread in self._idle:
                pool_thread.bell.release()
            self._idle.clear()

    def _wake_one(self) -> None:
        """Wake an idle thread, or start one, for the queued jobs."""
        if not self._jobs or self._woken:
            return
        if self._idle:
            pool_thread = self._idle.pop()  # the thread that became idle last wakes up fastest
            self._woken.add(pool_thread)
            pool_thread.bell.release()
        elif self._has_room() and not self._stopped:
            self._start_thread()

    def _has_room(self) -> bool:
        if len(self._threads) >= self._limit:
            # A thread may have died without running our cleanup.
            self._threads = {pool_thread for pool_thread in self._threads if pool_thread.thread.is_alive()}
        return len(self._threads) < self._limit

    def _start_thread(self) -> None:
        self._started += 1
        pool_thread = _PoolThread()
        pool_thread.thread = threading.Thread(
            target=self._work, args=(pool_thread,), name=f"{self._name}-{self._started}", daemon=True
        )
        self._threads.add(pool_thread)
        self._woken.add(pool_thread)
        try:
            pool_thread.thread.start()
        except BaseException:
            self._threads.discard(pool_thread)
            self._woken.discard(pool_thread)
            if not self._threads:
                raise  # the pool has no thread that could execute the job
            logger.exception(
                "no new thread could be started for %s; its jobs wait for existing threads", self._name
            )

    def _end_job(self, pool_thread: _PoolThread, entry: PooledJob) -> None:
        """Mark a job as over. If its thread was lost, the number of lost threads decreases."""
        was, entry.state, entry.pool_thread, pool_thread.entry = entry.state, _ThreadState.OVER, None, None
        if was is _ThreadState.LOST:
            self._lost -= 1

    def _work(self, pool_thread: _PoolThread) -> None:
        home = _forks.pid
        try:
            while (entry := self._next_job(pool_thread)) is not None:
                self._run(entry, home)
        finally:
            end_fork(home, 1)
            self._ended(pool_thread)

    def _next_job(self, pool_thread: _PoolThread) -> PooledJob | None:
        """Mark the thread's last job as over. Block until another job is available, and return it.

        Return None if the pool is stopped or this thread was lost.
        """
        while True:
            with self._lock:
                last = pool_thread.entry
                if last is not None:
                    if last.state is _ThreadState.LOST:
                        self._end_job(pool_thread, last)
                        return None
                    last.state, last.pool_thread, pool_thread.entry = _ThreadState.OVER, None, None
                if self._woken:
                    self._woken.discard(pool_thread)
                while self._jobs:
                    entry = self._jobs.popleft()
                    if entry.job is not None:  # otherwise it was given up while it was queued
                        pool_thread.entry, entry.state, entry.pool_thread = (
                            entry,
                            _ThreadState.RUNNING,
                            pool_thread,
                        )
                        if self._jobs and not self._woken:
                            self._wake_one()
                        return entry
                if self._stopped:
                    return None
                self._idle.append(pool_thread)
            pool_thread.bell.acquire()

    def _run(self, entry: PooledJob, home: int) -> None:
        job, arguments = entry.job, entry.arguments
        entry.job, entry.arguments = None, ()
        try:
            if job is not None:
                job(*arguments)
        except BaseException:
            end_fork(home, 1)
            logger.exception("a job of %s raised an unexpected exception", self._name)
        if _forks.pid != home:
            end_fork(home, 0)

    def _ended(self, pool_thread: _PoolThread) -> None:
        """Remove a thread that is ending because of `stop`, because it was lost, or because of an exception
        raised in it from outside.
        """
        with self._lock:
            entry = pool_thread.entry
            if entry is not None and entry.job is None:
                self._end_job(pool_thread, entry)
            self._threads.discard(pool_thread)
            self._woken.discard(pool_thread)
            if pool_thread in self._idle:
                self._idle.remove(pool_thread)
            if entry is not None and entry.job is not None:  # taken from the queue, but not begun
                entry.state, entry.pool_thread = _ThreadState.WAITING, None
                self._jobs.appendleft(entry)
            self._wake_one()


class OwnThread(AttemptWork):
    """A job in a thread of the author's executor (`Worker(activity_executor=…)`). The thread cannot be
    interrupted or replaced.
    """

    is_foreign = True

    def __init__(self) -> None:
        self._thread: int | None = None
        self._future: Future[None] | None = None

    def begin(self, executor: Executor, job: Callable[[], object], cancelled: Callable[[], object]) -> None:
        """Submit the job to the executor.

        `cancelled` is called if the job never runs, because the executor was shut down or the job was given up
        first.
        """

        def run() -> None:
            self._thread = threading.get_ident()
            try:
                job()
            finally:
                self._thread = None

        def ended(future: Future[None]) -> None:
            if future.cancelled():
                cancelled()

        self._future = executor.submit(run)
        self._future.add_done_callback(ended)

    def abandon(self) -> bool:
        """Cancel the job if it has not begun. A running job keeps its thread, which belongs to the author's
        executor.
        """
        if self._future is not None:
            self._future.cancel()
        return True

    def stack(self) -> str:
        """Return the stack of the job's thread, or "" if it has none."""
        return "" if self._thread is None else take_stack(frame_of(self._thread)).text
