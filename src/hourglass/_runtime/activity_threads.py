"""Threads that execute jobs of the user's: made as they are needed, replaced when they are lost.

They run user code and nothing else of ours; they are daemons, for an activity that never returns must not
keep the process alive. They know nothing of activities: a job is a function.

Invariants:

- What a job lets out is logged and ends nothing; a thread that ends all the same is replaced.
- A job that is given up keeps its thread, which ends with it, and another thread takes its place: the pool
  never has fewer threads than its limit to offer. How many may be lost at a time is bounded.
- A process that a job forked takes no further job.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from enum import Enum, auto
from queue import SimpleQueue

from hourglass._runtime.activity_calls import end_fork

logger = logging.getLogger("hourglass.worker")

Job = Callable[[], None]


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    LOST = auto()
    OVER = auto()


class Seat:
    """A job's place in a pool. Its state belongs to the pool."""

    __slots__ = ("job", "state", "thread")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.state = _State.WAITING
        self.thread: threading.Thread | None = None


class ThreadPool:
    """Daemon threads, made as they are needed up to a limit, each taking one job at a time."""

    def __init__(self, name: str, limit: int, *, most_lost: int | None = None) -> None:
        self._name = name
        self._limit = limit
        self._most_lost = limit if most_lost is None else most_lost
        self._jobs: SimpleQueue[Seat | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._made = 0
        self._open = 0  # jobs that wait or run, but for those on lost threads
        self._lost = 0
        self._stopped = False

    @property
    def size(self) -> int:
        """How many threads there are to take jobs."""
        return len(self._threads)

    @property
    def lost(self) -> int:
        """How many threads are held by jobs that were given up."""
        return self._lost

    def submit(self, job: Job) -> Seat:
        """Run a job as soon as a thread is free."""
        seat = Seat(job)
        with self._lock:
            self._open += 1
            self._jobs.put(seat)
            self._grow()
        return seat

    def give_up(self, seat: Seat) -> bool:
        """Have the pool go on without this job: one that waits is dropped, one that runs loses its thread.

        False if it runs and too many are lost already.
        """
        with self._lock:
            if seat.state is _State.WAITING:
                seat.state, seat.job = _State.OVER, None  # whoever takes the seat finds it empty
            elif seat.state is _State.RUNNING:
                if self._lost >= self._most_lost:
                    return False
                seat.state = _State.LOST
                self._lost += 1
                self._open -= 1
                if seat.thread is not None:
                    self._threads.discard(seat.thread)
                self._grow()
            return True

    def stop(self) -> None:
        """Let every thread end after the job it is at; waits for none."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                for _ in self._threads:
                    self._jobs.put(None)

    def _grow(self) -> None:
        if self._open <= len(self._threads) or self._stopped:
            return
        if len(self._threads) >= self._limit:
            # Some may have died in a way that ran no code of ours.
            self._threads = {each for each in self._threads if each.is_alive()}
            if len(self._threads) >= self._limit:
                return
        self._made += 1
        thread = threading.Thread(target=self._work, name=f"{self._name}-{self._made}", daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.discard(thread)
            if not self._threads:
                raise  # nobody would ever take the job
            logger.exception("no new thread for %s; its jobs wait for the others", self._name)

    # --- in a thread of the pool -------------------------------------------------------------------------------------

    def _work(self) -> None:
        home = os.getpid()
        me = threading.current_thread()
        seat: Seat | None = None
        try:
            while (seat := self._jobs.get()) is not None:
                if not self._run(seat, me, home):
                    return
                seat = None  # whoever waits for the next job must not keep this one's arguments alive
        finally:
            end_fork(home, 1)
            self._ended(me, seat)

    def _run(self, seat: Seat, me: threading.Thread, home: int) -> bool:
        """Run a job; False if its thread was lost meanwhile."""
        with self._lock:
            job, seat.job = seat.job, None
            if job is None:
                self._open -= 1
                return True
            seat.state, seat.thread = _State.RUNNING, me
        try:
            job()
        except BaseException:
            end_fork(home, 1)
            logger.exception("a job of %s let an exception out", self._name)
        end_fork(home, 0)
        return self._over(seat)

    def _over(self, seat: Seat) -> bool:
        with self._lock:
            was, seat.state, seat.thread = seat.state, _State.OVER, None
            if was is _State.LOST:
                self._lost -= 1
                return False
            self._open -= 1
            return True

    def _ended(self, me: threading.Thread, seat: Seat | None) -> None:
        """A thread ends: as it was told to, because it was lost, or by an exception from outside."""
        if seat is not None and seat.state is _State.RUNNING:
            self._over(seat)
        with self._lock:
            self._threads.discard(me)
            if seat is not None and seat.state is _State.WAITING:
                self._jobs.put(seat)  # taken, and not begun
            self._grow()
