"""One lane: a thread that runs workflow code, one activation at a time, and delivers the verdicts on the control loop.

A lane does no I/O of ours and holds no lock while workflow code runs. It can be abandoned at any time: from then on it
accepts no work and delivers no verdict, unwinds its fibers and ends.

Invariants:

- An activation is either queued, or in progress, or answered, wherever the thread dies.
- While work is queued, the bell has been rung, or will be when the turn of the control loop ends that submitted it,
  or the thread is working and takes it next.
- Verdicts reach the control loop in order; those that come together wake it once. Each job is answered at most once,
  there, and never by an abandoned lane (I5).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
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

    `answered` belongs to the control loop; `since`, when the lane began with it, to the lane.
    """

    activation: Activation
    reply: Reply
    generation: int = 0
    answered: bool = False
    since: float = 0.0

    def answer(self, verdict: Verdict) -> None:
        """Give the caller the verdict, once."""
        if self.answered:
            return
        self.answered = True
        try:
            self.reply(verdict)
        except Exception:
            logger.exception("a verdict could not be delivered")


class Chore:
    """A call with the lane's evaluations, without an answer. If the lane hangs or dies in it, the call is not repeated."""

    __slots__ = ("call", "since")

    def __init__(self, call: Callable[[Evaluations], None]) -> None:
        self.call = call
        self.since = 0.0


STOP = Chore(Evaluations.close)
"""The last chore: drop everything, and end the thread."""

Work: TypeAlias = LaneJob | Chore


@dataclass(frozen=True)
class Remains:
    """The work that an abandoned lane leaves: the job in progress, and the queue in order."""

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
        self._will_ring = False  # at the end of this turn of the loop
        self._busy: Work | None = None
        self._phase = LanePhase.WORKING
        self._abandoned = False
        self._cpu_time: float | None = None
        self._answers: deque[tuple[LaneJob, Verdict]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=thread_name or name, daemon=True)

    @property
    def counts(self) -> Counts:
        """The figures so far."""
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
        """The length of the queue."""
        return len(self._work)

    @property
    def ended(self) -> bool:
        """Whether the thread has left both our code and the author's."""
        return self._phase is LanePhase.ENDED or (
            self._thread.ident is not None and not self._thread.is_alive()
        )

    @property
    def progress(self) -> int:
        """A number that increases while the thread unwinds its fibers; 0 before."""
        return 0 if self._phase is LanePhase.WORKING else 1 + self.evaluations.unwound

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, activation: Activation, reply: Reply, generation: int = 0) -> None:
        """Queue an activation; `reply` is called with the verdict on the control loop."""
        self._work.append(LaneJob(activation, reply, generation))
        # The thread is woken at the end of this turn of the loop: until then it would wait for the interpreter, and each
        # wake-up switches threads twice. Activations that are submitted in one turn wake it once.
        if not self._will_ring:
            self._will_ring = True
            self._loop.call_soon(self._ring)

    def do(self, call: Callable[[Evaluations], None]) -> None:
        """Queue a call with the lane's evaluations."""
        self._put(Chore(call))

    def take_over(self, work: Iterable[Work]) -> None:
        """Queue work that another lane has not begun."""
        for item in work:
            self._put(item)

    def stop(self) -> None:
        """Finish the queue, drop all fibers on this lane's thread, and end. Does not wait."""
        self._put(STOP)

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end after `stop`. Return whether it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the end of an abandoned lane. Return whether it has ended."""
        return self.join(timeout)

    def abandon(self, at: Work | None = None) -> Remains | None:
        """Take everything from the lane. Verdicts so far are delivered, later ones are dropped.

        With `at`, return None and do nothing if the lane is not at that work any more.
        """
        with self._mutex:
            busy = self._busy
            if at is not None and at is not busy:
                return None
            self._abandoned = True
            queued = list(self._work)
            self._work.clear()
        self._bell.put(None)  # it may be waiting for work
        if queued and queued[0] is busy:
            del queued[0]  # it died between taking the work and removing it from the queue
        self._deliver()
        job = busy if isinstance(busy, LaneJob) and not busy.answered else None
        return Remains(job, tuple(queued))

    def part_with(self, at: Work, may_leave: Callable[[LaneJob], bool]) -> list[LaneJob]:
        """Take jobs from the queue, in order, while the lane is at this work; none if it is not any longer."""
        with self._mutex:
            if self._abandoned or self._busy is not at:
                return []
            queued = list(self._work)
            leaving = [work for work in queued if isinstance(work, LaneJob) and may_leave(work)]
            if leaving:
                taken = set(map(id, leaving))
                self._work.clear()
                self._work.extend(work for work in queued if id(work) not in taken)
            return leaving

    def interrupt(self, attempt: int) -> None:
        """Raise `LaneStopped` in the thread, if that is safe now and can help."""
        # The thread ends under the mutex too: while we hold it, the thread's id cannot go to another thread.
        with self._mutex:
            thread_id = self._thread.ident
            if thread_id is None or self.ended:
                return
            before, self._cpu_time = self._cpu_time, cpu_time(thread_id)
            if before is not None and before == self._cpu_time:
                return  # it waits in C code, which an exception does not reach
            if may_interrupt(frame_of(thread_id), attempt):
                raise_briefly(thread_id, wait_of(attempt))

    def cpu_time(self) -> float | None:
        """Return the seconds that the thread has computed; None if unknown."""
        with self._mutex:  # as in `interrupt`
            thread_id = self._thread.ident
            return None if thread_id is None or self.ended else cpu_time(thread_id)

    def _put(self, work: Work) -> None:
        self._work.append(work)
        self._ring()  # also for submitted activations: the loop may close before this turn ends

    def _ring(self) -> None:
        self._will_ring = False
        if self._bell.empty():  # otherwise the bell was rung, and the thread has not waited since
            self._bell.put(None)

    def _deliver(self) -> None:
        """Deliver the verdicts. On the control loop."""
        self._woken = False  # first: a verdict that comes from now on wakes the loop again
        while self._answers:
            job, verdict = self._answers.popleft()
            if not job.answered:  # as `LaneJob.answer`, without a call for each
                job.answered = True
                try:
                    job.reply(verdict)
                except Exception:
                    logger.exception("a verdict could not be delivered")

    def _run(self) -> None:
        """Run the thread."""
        try:
            runs_workflows()
            finished, error = self._serve(), None
        except BaseException as raised:
            finished, error = False, raised
        try:
            self._end(finished=finished, error=error)
        except LaneStopped:
            pass  # an exception that was raised while it ended: the thread still ends, which `ended` shows

    def _serve(self) -> bool:
        """Work until stopped. Return False if the lane was abandoned."""
        while True:
            if not self._work:
                self._bell.get()
            with self._mutex:
                if self._abandoned:
                    return False
                if not self._work:
                    continue  # done after an earlier ring, or moved to another lane
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
            if not self._call_loop(self._deliver):
                logger.warning("%s: the control loop is closed, an answer is lost", self.name)
        return True

    def _end(self, *, finished: bool, error: BaseException | None) -> None:
        """Unwind the fibers, whatever exception is raised in the thread meanwhile, and end it."""
        unwound, failure = False, None
        while self._phase is not LanePhase.ENDED:
            try:
                self._phase = LanePhase.UNWINDING
                if not finished and not self._abandoned:
                    self._call_loop(lambda: self._on_died(self, error))
                if failure is not None:
                    logger.error("%s did not end cleanly", self.name, exc_info=failure)
                if not unwound:
                    debuggers.activation_ended(threading.get_ident())
                    (self.evaluations.close if finished else self.evaluations.unwind)()
                    unwound = True
                with self._mutex:
                    if self._busy is STOP:
                        self._busy = None  # a job in progress stays, to be failed
                    self._phase = LanePhase.ENDED
            except LaneStopped:
                continue
            except BaseException as raised:
                unwound, failure = True, raised

    def _call_loop(self, call: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True
