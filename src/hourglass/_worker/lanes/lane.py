"""One lane: a thread that runs workflow code, one activation at a time, and delivers the verdicts on the control loop.

A lane does no I/O of ours and holds no lock while workflow code runs. It can be abandoned at any time: from then on it
accepts no work and delivers no verdict, unwinds its fibers and ends.

Invariants:

- Wherever the thread dies, an activation is either queued, in progress, or answered.
- While work is queued, the thread is busy and will take the work next, or the bell has been rung, or the bell will be
  rung at the end of the current iteration of the control loop.
- Verdicts reach the control loop in order, and verdicts that become ready together wake the loop only once. Each job is
  answered at most once, on the control loop, and never by an abandoned lane (I5).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from queue import SimpleQueue
from time import monotonic
from typing import TypeAlias

import msgspec

from hourglass._evaluator.events import Activation
from hourglass._worker.health import debuggers
from hourglass._worker.health.stacks import frame_of
from hourglass._worker.health.stopping import LaneStopped, cpu_time, may_interrupt, raise_briefly, wait_of
from hourglass._worker.lanes.counts import Counts
from hourglass._worker.lanes.evaluation import Evaluations, Verdict
from hourglass.activity._definition import runs_workflows

logger = logging.getLogger("hourglass.worker")

Reply: TypeAlias = Callable[[Verdict], object]


class LaneJob(msgspec.Struct, eq=False):
    """An activation to evaluate, and the caller's `reply` for its verdict.

    The control loop sets `answered`. The lane sets `since`, the time at which it began with the job.
    """

    activation: Activation
    reply: Reply
    generation: int = 0
    answered: bool = False
    since: float = 0.0

    def answer(self, verdict: Verdict) -> None:
        """Pass the verdict to the caller. Does nothing if the job was answered earlier."""
        if self.answered:
            return
        self.answered = True
        try:
            self.reply(verdict)
        except Exception:
            logger.exception("the result of a lane's job could not be delivered")


class Chore:
    """A call with the lane's `Evaluations` as argument, without an answer. If the lane hangs or dies during the call,
    the call is not repeated.
    """

    __slots__ = ("call", "since")

    def __init__(self, call: Callable[[Evaluations], None]) -> None:
        self.call = call
        self.since = 0.0


STOP = Chore(Evaluations.close)
"""The last chore: drop all fibers and runs, and end the thread."""

Work: TypeAlias = LaneJob | Chore


@dataclass(frozen=True)
class Remains:
    """The unfinished work of an abandoned lane: the job in progress, and the queued work in order."""

    job: LaneJob | None
    queued: tuple[Work, ...]


class LanePhase(Enum):
    """The phases in the life of a lane's thread."""

    WORKING = auto()
    UNWINDING = auto()
    ENDED = auto()


class Lane:
    """One thread that runs workflow code, and its runs.

    `on_died` is called on the control loop if the thread ends with an exception.
    """

    def __init__(
        self,
        name: str,
        evaluations: Evaluations,
        loop: asyncio.AbstractEventLoop,
        on_died: Callable[[Lane, BaseException | None], object],
        *,
        thread_name: str = "",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self.evaluations = evaluations
        self._on_died = on_died
        self._loop = loop
        self._clock = clock
        self._mutex = threading.Lock()
        self._work: deque[Work] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._will_ring = False  # at the end of this iteration of the loop
        self._busy: Work | None = None
        self._phase = LanePhase.WORKING
        self._abandoned = False
        self._cpu_time: float | None = None
        self._answers: deque[tuple[LaneJob, Verdict]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=thread_name or name, daemon=True)

    @property
    def counts(self) -> Counts:
        return self.evaluations.counts

    @property
    def thread_id(self) -> int | None:
        """Python's id of the thread, None before it has started."""
        return self._thread.ident

    @property
    def busy(self) -> Work | None:
        """The work in progress."""
        return self._busy

    @property
    def queued(self) -> int:
        return len(self._work)

    @property
    def ended(self) -> bool:
        """Whether the thread has left both our code and the author's."""
        return self._phase is LanePhase.ENDED or (
            self._thread.ident is not None and not self._thread.is_alive()
        )

    @property
    def progress(self) -> int:
        """A number that increases while the thread unwinds its fibers, and is 0 before."""
        return 0 if self._phase is LanePhase.WORKING else 1 + self.evaluations.unwound

    def start(self) -> None:
        self._thread.start()

    def submit(self, activation: Activation, reply: Reply, generation: int = 0) -> None:
        """Queue an activation. `reply` is called with the verdict on the control loop."""
        self._work.append(LaneJob(activation, reply, generation))
        # Wake the thread at the end of this iteration of the control loop. Until then the thread would only wait for
        # the interpreter, and each wake-up switches threads twice. All activations of one iteration wake the thread
        # once.
        if not self._will_ring:
            self._will_ring = True
            self._loop.call_soon(self._ring)

    def do(self, call: Callable[[Evaluations], None]) -> None:
        """Queue a call with the lane's `Evaluations` as argument."""
        self._put(Chore(call))

    def take_over(self, work: Iterable[Work]) -> None:
        """Queue work that another lane has not begun."""
        for item in work:
            self._put(item)

    def stop(self) -> None:
        """Finish the queue, drop all fibers on this lane's thread, and end. Does not wait."""
        self._put(STOP)

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end after `stop` or `abandon`. Return whether the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self, at: Work | None = None) -> Remains | None:
        """Take all work from the lane. Verdicts that are already waiting are delivered, later ones are dropped.

        With `at`, return None and do nothing if the lane no longer executes that work.
        """
        with self._mutex:
            busy = self._busy
            if at is not None and at is not busy:
                return None
            self._abandoned = True
            queued = list(self._work)
            self._work.clear()
        self._bell.put(None)  # the thread may be waiting for work
        if queued and queued[0] is busy:
            del queued[0]  # the thread died between taking the work and removing it from the queue
        self._deliver()
        job = busy if isinstance(busy, LaneJob) and not busy.answered else None
        return Remains(job, tuple(queued))

    def part_with(self, at: Work, may_leave: Callable[[LaneJob], bool]) -> list[LaneJob]:
        """Remove and return the queued jobs that `may_leave` selects, in order. Return none if the lane no longer
        executes the work `at`.
        """
        with self._mutex:
            if self._abandoned or self._busy is not at:
                return []
            queued = list(self._work)
            leaving = [work for work in queued if isinstance(work, LaneJob) and may_leave(work)]
            if leaving:
                leaving_ids = set(map(id, leaving))
                self._work.clear()
                self._work.extend(work for work in queued if id(work) not in leaving_ids)
            return leaving

    def interrupt(self, attempt: int) -> None:
        """Raise `LaneStopped` in the thread, if that is safe now and can help."""
        # A thread marks itself as ended under the mutex: while we hold the mutex, the thread's id cannot be reused.
        with self._mutex:
            thread_id = self._thread.ident
            if thread_id is None or self.ended:
                return
            before, self._cpu_time = self._cpu_time, cpu_time(thread_id)
            if before is not None and before == self._cpu_time:
                return  # the thread waits in C code, which an exception does not interrupt
            if may_interrupt(frame_of(thread_id), attempt):
                raise_briefly(thread_id, wait_of(attempt))

    def cpu_time(self) -> float | None:
        """Return the thread's CPU time in seconds; None if unknown."""
        with self._mutex:  # as in `interrupt`
            thread_id = self._thread.ident
            return None if thread_id is None or self.ended else cpu_time(thread_id)

    def _put(self, work: Work) -> None:
        self._work.append(work)
        self._ring()  # also for submitted activations: the loop may close before this iteration ends

    def _ring(self) -> None:
        self._will_ring = False
        if self._bell.empty():  # otherwise the thread has not reacted to the last ring yet
            self._bell.put(None)

    def _deliver(self) -> None:
        """Deliver the verdicts. Must be called on the control loop."""
        self._woken = False  # first: a verdict that comes from now on wakes the loop again
        while self._answers:
            job, verdict = self._answers.popleft()
            if not job.answered:  # the same as `LaneJob.answer`, without a function call
                job.answered = True
                try:
                    job.reply(verdict)
                except Exception:
                    logger.exception("the result of a lane's job could not be delivered")

    def _run(self) -> None:
        """Execute work until the lane is stopped or abandoned, then unwind its fibers. This is the body of the thread."""
        try:
            runs_workflows()
            finished, error = self._serve(), None
        except BaseException as raised:
            finished, error = False, raised
        try:
            self._end(finished=finished, error=error)
        except LaneStopped:
            pass  # raised while the thread ended: it still ends, and `ended` reports that

    def _serve(self) -> bool:
        """Execute work until the lane is stopped. Return False if the lane was abandoned."""
        while True:
            if not self._work:
                self._bell.get()
            with self._mutex:
                if self._abandoned:
                    return False
                if not self._work:
                    continue  # the work was done after an earlier ring, or moved to another lane
                work = self._work[0]
                work.since = self._clock()
                self._busy = work  # before it is removed from the queue: see `abandon`
                self._work.popleft()
            if work is STOP:
                return True
            if isinstance(work, LaneJob):
                verdict = self.evaluations.evaluate(work.activation, work.generation)
                if not self._answer(work, verdict):
                    return False
                del verdict
            else:
                work.call(self.evaluations)
                self._busy = None
            del work

    def _answer(self, job: LaneJob, verdict: Verdict) -> bool:
        """Pass a verdict to the control loop. Return False if the lane was abandoned."""
        if debuggers.stopped_threads:
            debuggers.activation_ended(threading.get_ident())
        with self._mutex:
            if self._abandoned:
                return False
            self._answers.append((job, verdict))
            self._busy = None
        # After the append: `_deliver` resets `_woken` before it drains, so a pending call finds this verdict.
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                logger.warning("%s: a result is lost, because the control loop is closed", self.name)
        return True

    def _end(self, *, finished: bool, error: BaseException | None) -> None:
        """Unwind the fibers and mark the lane as ended, whatever exception is raised in the thread meanwhile."""
        unwound, failure = False, None
        while self._phase is not LanePhase.ENDED:
            try:
                self._phase = LanePhase.UNWINDING
                if not finished and not self._abandoned:
                    with suppress(RuntimeError):  # the loop is closed
                        self._loop.call_soon_threadsafe(self._on_died, self, error)
                if failure is not None:
                    logger.error("%s did not end cleanly", self.name, exc_info=failure)
                if not unwound:
                    debuggers.activation_ended(threading.get_ident())
                    (self.evaluations.close if finished else self.evaluations.unwind)()
                    unwound = True
                with self._mutex:
                    if self._busy is STOP:
                        self._busy = None  # a job in progress stays, so that it can be failed
                    self._phase = LanePhase.ENDED
            except LaneStopped:
                continue
            except BaseException as raised:
                unwound, failure = True, raised
