"""Threads for user code: started on demand, replaced when they are lost.

They run only user code. They are daemon threads, so that an activity that never returns does not keep the process alive.

Must not know: activities; a job is a function. Threads are woken one by one: a thread that takes a job wakes the next one
before it begins, if more jobs are queued. A job that waits releases the interpreter to that thread; very short jobs are
executed one after another by the first thread, without switching threads.

Invariants:

- While jobs are queued, a thread has been woken, or will be at the end of the event loop's turn that submitted them, or the
  maximum number of threads is busy.
- An exception that a job raises is logged and ends no thread; a thread that ends nevertheless is replaced.
- A job that is given up keeps its thread, which ends with it, and another thread replaces it, so that the pool always
  has the full number of usable threads. The number of lost threads is limited.
- A process that a job forked executes no further job.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from enum import Enum, auto
from typing import Any, ClassVar

from hourglass import _forks
from hourglass._worker.activities.invocation import end_fork
from hourglass._worker.health.stacks import frame_of, take_stack

logger = logging.getLogger("hourglass.worker")

Job = Callable[..., object]


class _ThreadState(Enum):
    WAITING = auto()
    RUNNING = auto()
    LOST = auto()
    OVER = auto()


class Seat:
    """A job in a pool, queued or in a thread, as its submitter holds it. Its state belongs to the pool."""

    __slots__ = ("_pool", "arguments", "hand", "job", "state")

    is_process: ClassVar[bool] = False
    is_foreign: ClassVar[bool] = False

    def __init__(self, pool: ThreadPool, job: Job, arguments: tuple[Any, ...]) -> None:
        self._pool = pool
        self.job: Job | None = job
        self.arguments = arguments
        self.state = _ThreadState.WAITING
        self.hand: _Hand | None = None

    def cancel(self, reason: str) -> None:
        """Do nothing: the job itself must check for cancellation."""

    def give_up(self) -> bool:
        """Give up this job; see `ThreadPool.give_up`."""
        return self._pool.give_up(self)

    def stack(self) -> str:
        """Return the stack of the job's thread; empty if it has none."""
        hand = self.hand
        return "" if hand is None else take_stack(frame_of(hand.thread.ident)).text


class _Hand:
    """A thread of a pool, its current job, and the lock that wakes it."""

    __slots__ = ("_bell", "seat", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread
        self.seat: Seat | None = None
        # A lock that is acquired at the start: `rest` blocks on it until `call` releases it. Cheaper than a condition.
        self._bell = threading.Lock()
        self._bell.acquire()

    def call(self) -> None:
        """Wake the thread. The caller has removed it from the pool's idle threads."""
        self._bell.release()

    def rest(self) -> None:
        """Wait until `call`."""
        self._bell.acquire()


class ThreadPool:
    """A pool of daemon threads, started on demand up to a limit."""

    def __init__(self, name: str, limit: int, *, most_lost: int | None = None) -> None:
        self._name = name
        self._limit = limit
        self._most_lost = limit if most_lost is None else most_lost
        self._jobs: deque[Seat] = deque()
        self._lock = threading.Lock()
        self._hands: set[_Hand] = set()
        self._resting: list[_Hand] = []
        self._called: set[_Hand] = set()  # woken or started, and not running yet
        self._will_call = False  # at the end of the loop's turn that submitted jobs
        self._made = 0
        self._lost = 0
        self._stopped = False

    @property
    def size(self) -> int:
        """The number of usable threads."""
        return len(self._hands)

    @property
    def lost(self) -> int:
        """The number of threads that execute jobs that were given up."""
        return self._lost

    def submit(self, job: Job, *arguments: Any) -> Seat:
        """Run `job(*arguments)` as soon as a thread is free."""
        seat = Seat(self, job, arguments)
        with self._lock:
            self._jobs.append(seat)
            if self._called or self._will_call:
                return seat  # a thread has been woken, or will be soon, and wakes the next one for this job
            loop = asyncio._get_running_loop() if self._resting else None
            if loop is not None:
                # A thread that is woken before this turn of the loop has ended would only wait for the interpreter.
                self._will_call = True
                loop.call_soon(self._call_now)
                return seat
            try:
                self._call_one()
            except BaseException:
                self._jobs.remove(seat)
                raise
        return seat

    def _call_now(self) -> None:
        with self._lock:
            self._will_call = False
            self._call_one()

    def give_up(self, seat: Seat) -> bool:
        """Drop a queued job, or replace the thread of a running one.

        Returns False if the job is running and too many threads are lost already.
        """
        with self._lock:
            if seat.state is _ThreadState.WAITING:
                # It stays in the queue: a thread that takes it finds no job in it, and takes the next.
                seat.state = _ThreadState.OVER
                seat.job, seat.arguments = None, ()
            elif seat.state is _ThreadState.RUNNING:
                if self._lost >= self._most_lost:
                    return False
                seat.state = _ThreadState.LOST
                self._lost += 1
                if seat.hand is not None:
                    self._hands.discard(seat.hand)
                self._call_one()
            return True

    def stop(self) -> None:
        """Let all threads end after the queued jobs, without waiting."""
        with self._lock:
            self._stopped = True
            for hand in self._resting:
                hand.call()
            self._resting.clear()

    # --- under the lock ----------------------------------------------------------------------------------------------

    def _call_one(self) -> None:
        """Wake an idle thread, or start one, for the queued jobs."""
        if not self._jobs or self._called:
            return
        if self._resting:
            hand = self._resting.pop()  # the thread that became idle last wakes up fastest
            self._called.add(hand)
            hand.call()
        elif self._has_room() and not self._stopped:
            self._make()

    def _has_room(self) -> bool:
        if len(self._hands) >= self._limit:
            # A thread may have died without running our cleanup.
            self._hands = {each for each in self._hands if each.thread.is_alive()}
        return len(self._hands) < self._limit

    def _make(self) -> None:
        self._made += 1
        hand = _Hand()
        hand.thread = threading.Thread(
            target=self._work, args=(hand,), name=f"{self._name}-{self._made}", daemon=True
        )
        self._hands.add(hand)
        self._called.add(hand)
        try:
            hand.thread.start()
        except BaseException:
            self._hands.discard(hand)
            self._called.discard(hand)
            if not self._hands:
                raise  # there is no thread for the job
            logger.exception("no new thread for %s; its jobs wait for the others", self._name)

    def _leave(self, hand: _Hand, seat: Seat) -> None:
        """Mark a job as over. Its thread may have been lost meanwhile."""
        was, seat.state, seat.hand, hand.seat = seat.state, _ThreadState.OVER, None, None
        if was is _ThreadState.LOST:
            self._lost -= 1

    # --- in a thread of the pool -------------------------------------------------------------------------------------

    def _work(self, hand: _Hand) -> None:
        home = _forks.here
        try:
            while (seat := self._take(hand)) is not None:
                self._run(seat, home)
        finally:
            end_fork(home, 1)
            self._ended(hand)

    def _take(self, hand: _Hand) -> Seat | None:
        """End the last job, wait until another is available and return it.

        Returns None if the pool is stopped, or this thread was lost.
        """
        while True:
            with self._lock:
                last = hand.seat
                if last is not None:
                    if last.state is _ThreadState.LOST:
                        self._leave(hand, last)
                        return None
                    last.state, last.hand, hand.seat = _ThreadState.OVER, None, None
                if self._called:
                    self._called.discard(hand)
                while self._jobs:
                    seat = self._jobs.popleft()
                    if seat.job is not None:  # otherwise it was given up while it was queued
                        hand.seat, seat.state, seat.hand = seat, _ThreadState.RUNNING, hand
                        if self._jobs and not self._called:
                            self._call_one()
                        return seat
                if self._stopped:
                    return None
                self._resting.append(hand)
            hand.rest()

    def _run(self, seat: Seat, home: int) -> None:
        job, arguments = seat.job, seat.arguments
        seat.job, seat.arguments = None, ()
        try:
            if job is not None:
                job(*arguments)
        except BaseException:
            end_fork(home, 1)
            logger.exception("a job of %s let an exception out", self._name)
        if _forks.here != home:
            end_fork(home, 0)

    def _ended(self, hand: _Hand) -> None:
        """Remove a thread that ends: because of `stop`, because it was lost, or by an exception from outside."""
        with self._lock:
            seat = hand.seat
            if seat is not None and seat.job is None:
                self._leave(hand, seat)
            self._hands.discard(hand)
            self._called.discard(hand)
            if hand in self._resting:
                self._resting.remove(hand)
            if seat is not None and seat.job is not None:  # taken from the queue, but not begun
                seat.state, seat.hand = _ThreadState.WAITING, None
                self._jobs.appendleft(seat)
            self._call_one()


class OwnThread:
    """A job in a thread of the author's own executor (`Worker(activity_executor=…)`), which cannot be interrupted."""

    is_process: ClassVar[bool] = False
    is_foreign: ClassVar[bool] = True

    def __init__(self) -> None:
        self._thread: int | None = None
        self._future: Future[None] | None = None

    def begin(self, executor: Executor, job: Callable[[], object], cancelled: Callable[[], object]) -> None:
        """Submit the job to the executor.

        `cancelled` is called if it never runs, because the executor was shut down or the job given up before.
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

    def cancel(self, reason: str) -> None:
        """Do nothing: the job itself must check for cancellation."""

    def give_up(self) -> bool:
        """Cancel a job that has not begun. The thread of a running one belongs to the author's executor."""
        if self._future is not None:
            self._future.cancel()
        return True

    def stack(self) -> str:
        """Return the stack of the job's thread; empty if it has none."""
        return "" if self._thread is None else take_stack(frame_of(self._thread)).text
