"""One lane: a thread that runs workflow code, one activation at a time, and tells the control loop the verdicts; and how the
control loop sees that a lane does not come back (`LaneGuard`, `Delays`).

A lane does no I/O of ours and holds no lock while workflow code runs. It can be abandoned at any instant: from then on it
takes nothing more, says nothing more, unwinds its fibers and ends.

Invariants:

- An activation is queued, or in work, or answered: never two of them, never none, wherever the thread dies.
- While work waits the bell has been rung, or will be when the turn of the control loop that submitted it ends, or the thread is
  at work and takes it next.
- Answers reach the control loop in order; those that come together wake it once. Each job is answered at most once,
  there, and never by a lane that was abandoned (I5).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import TypeAlias

import msgspec

from hourglass._evaluator.events import Activation
from hourglass._worker.health import debuggers
from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.stacks import frame_of
from hourglass._worker.health.stopping import LaneStopped, cpu_time, may_interrupt, raise_briefly, wait_of
from hourglass._worker.lanes.evaluation import Counts, Evaluations, Verdict
from hourglass.activity._definition import runs_workflows

logger = logging.getLogger("hourglass.worker")

Reply: TypeAlias = Callable[[Verdict], object]


class LaneJob(msgspec.Struct, eq=False):
    """An activation to evaluate, and the caller's `reply` for its verdict. `answered` belongs to the control loop,
    `since` to the lane.
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
    """Something to do with the lane's runs, without an answer. A lane that hangs or dies at it leaves it undone."""

    __slots__ = ("do", "since")

    def __init__(self, do: Callable[[Evaluations], None]) -> None:
        self.do = do
        self.since = 0.0


STOP = Chore(Evaluations.close)
"""The last chore: drop everything, and end."""

Work: TypeAlias = LaneJob | Chore


@dataclass(frozen=True)
class Remains:
    """What an abandoned lane leaves: the job it was at, and the work that it has not begun, in order."""

    job: LaneJob | None
    queued: tuple[Work, ...]


class Lane:
    """One thread that runs workflow code, and its runs."""

    def __init__(
        self,
        name: str,
        evaluations: Evaluations,
        loop: asyncio.AbstractEventLoop,
        *,
        thread_name: str = "",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self.evaluations = evaluations
        self.on_died: Callable[[Lane, BaseException | None], object] | None = None
        self._loop = loop
        self._clock = clock
        self._mutex = threading.Lock()
        self._work: deque[Work] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._will_ring = False  # when this turn of the loop has ended
        self._busy: Work | None = None
        self._abandoned = False
        self._ended = False
        self._closing = 0
        self._cpu_time: float | None = None
        self._answers: deque[tuple[LaneJob, Verdict]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._live, name=thread_name or name, daemon=True)

    # --- for the control loop ----------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counts:
        """What the lane has done so far."""
        return self.evaluations.counts

    @property
    def thread_id(self) -> int | None:
        """The thread's number, None before it has begun."""
        return self._thread.ident

    @property
    def busy(self) -> Work | None:
        """What is in work."""
        return self._busy

    @property
    def queued(self) -> int:
        """How much waits."""
        return len(self._work)

    @property
    def ended(self) -> bool:
        """Whether the thread has left all code of ours and the author's."""
        return self._ended or (self._thread.ident is not None and not self._thread.is_alive())

    @property
    def progress(self) -> int:
        """A number that moves while the thread unwinds its fibers; 0 before it does."""
        return self._closing and self._closing + self.evaluations.unwound

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, activation: Activation, reply: Reply, generation: int = 0) -> None:
        """Have an activation evaluated; `reply` is called with the verdict on the control loop."""
        self._work.append(LaneJob(activation, reply, generation))
        # The thread is woken when this turn of the loop has ended: until then it would wait for the interpreter, and each
        # such wake-up is two switches of threads. What is submitted in one turn wakes it once.
        if not self._will_ring:
            self._will_ring = True
            self._loop.call_soon(self._ring)

    def _ring(self) -> None:
        self._will_ring = False
        if self._bell.empty():  # else it has been rung, and the thread has not come to wait since
            self._bell.put(None)

    def do(self, chore: Callable[[Evaluations], None]) -> None:
        """Have something done with the lane's runs, in its turn."""
        self._put(Chore(chore))

    def take_over(self, work: Iterable[Work]) -> None:
        """Do what another lane has not done."""
        for each in work:
            self._put(each)

    def stop(self) -> None:
        """Finish what is queued, drop all fibers on this lane's thread, and end; waits for nothing."""
        self._put(STOP)

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end after `stop`; True if it has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def wait_ended(self, timeout: float) -> bool:
        """The same, for a lane that was abandoned."""
        return self.join(timeout)

    def abandon(self, at: Work | None = None) -> Remains | None:
        """Take everything from the lane. What it has answered so far is delivered, what it says from now on is not.
        None, and nothing happens, if it is not at a given work any more.
        """
        with self._mutex:
            busy = self._busy
            if at is not None and at is not busy:
                return None
            self._abandoned = True
            queued = list(self._work)
            self._work.clear()
        self._bell.put(None)  # should it wait for work: there is none
        if queued and queued[0] is busy:
            del queued[0]  # it died between taking the work and striking it off
        self._deliver()
        job = busy if isinstance(busy, LaneJob) and not busy.answered else None
        return Remains(job, tuple(queued))

    def part_with(self, at: Work, wanted: Callable[[LaneJob], bool]) -> list[LaneJob]:
        """Take activations that wait from the lane, in order, while it is at a given work; none if it is not any more."""
        with self._mutex:
            if self._abandoned or self._busy is not at:
                return []
            waiting = list(self._work)
            given = [each for each in waiting if isinstance(each, LaneJob) and wanted(each)]
            if given:
                gone = set(map(id, given))
                self._work.clear()
                self._work.extend(each for each in waiting if id(each) not in gone)
            return given

    def interrupt(self, attempt: int) -> None:
        """Raise `LaneStopped` in the thread, if that is safe now and can help."""
        # `_gone` takes the mutex, too: while we have it the thread cannot end, nor its id go to another thread.
        with self._mutex:
            thread_id = self._thread.ident
            if thread_id is None or self.ended:
                return
            used, self._cpu_time = self._cpu_time, cpu_time(thread_id)
            if used is not None and used == self._cpu_time:
                return  # it waits in C, where nothing reaches it
            if may_interrupt(frame_of(thread_id), attempt):
                raise_briefly(thread_id, wait_of(attempt))

    def processor_time(self) -> float | None:
        """How many seconds the thread has computed; None where that is not known."""
        with self._mutex:  # as in `interrupt`: the thread cannot end meanwhile
            thread_id = self._thread.ident
            return None if thread_id is None or self.ended else cpu_time(thread_id)

    def _put(self, work: Work) -> None:
        self._work.append(work)
        self._ring()  # at once, also for what was submitted: the loop may end before its turn does

    def _deliver(self) -> None:
        self._woken = False  # first: an answer that comes from now on wakes us again
        while self._answers:
            job, verdict = self._answers.popleft()
            if not job.answered:  # as `Job.answer`, once for each
                job.answered = True
                try:
                    job.reply(verdict)
                except Exception:
                    logger.exception("a verdict could not be delivered")

    def _tell_died(self, error: BaseException | None) -> None:
        if self.on_died is not None:
            self.on_died(self, error)

    # --- on the lane's thread ----------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            runs_workflows()
            finished, error = self._serve(), None
        except BaseException as raised:
            finished, error = False, raised
        try:
            self._end(finished=finished, error=error)
        except LaneStopped:
            pass  # raised between two tries to end: the thread is gone, and that can be seen

    def _serve(self) -> bool:
        """Work until told to stop; False if it was abandoned instead."""
        while True:
            if not self._work:
                self._bell.get()
            with self._mutex:
                if self._abandoned:
                    return False
                if not self._work:
                    continue  # it was done at an earlier ring, or given to another lane
                work = self._work[0]
                work.since = self._clock()
                self._busy = work  # first, and only then struck off: see `abandon`
                self._work.popleft()
            if work is STOP:
                return True
            if isinstance(work, LaneJob):
                verdict = self.evaluations.evaluate(work.activation, work.generation)
                if not self._answer(work, verdict):
                    return False
                del verdict
            else:
                work.do(self.evaluations)
                self._busy = None
            del work

    def _answer(self, job: LaneJob, verdict: Verdict) -> bool:
        """Hand a verdict to the control loop; False if this lane has nothing to say any more."""
        if debuggers.stopped_threads:
            debuggers.activation_ended(threading.get_ident())
        with self._mutex:
            if self._abandoned:
                return False
            self._answers.append((job, verdict))
            self._busy = None
        # After the append: `_deliver` clears `_woken` before it drains, so a pending one finds this answer.
        if not self._woken:
            self._woken = True
            if not self._call_loop(self._deliver):
                logger.warning("%s: the control loop is closed, an answer is lost", self.name)
        return True

    def _end(self, *, finished: bool, error: BaseException | None) -> None:
        """Unwind the fibers, whatever is raised at us meanwhile, and be gone."""
        unwound, failed = False, None
        while not self._ended:
            try:
                self._closing = 1
                if not finished and not self._abandoned:
                    self._call_loop(lambda: self._tell_died(error))
                if failed is not None:
                    logger.error("%s did not end cleanly", self.name, exc_info=failed)
                if not unwound:
                    debuggers.activation_ended(threading.get_ident())
                    (self.evaluations.close if finished else self.evaluations.unwind)()
                    unwound = True
                self._gone()
            except LaneStopped:
                continue
            except BaseException as raised:
                unwound, failed = True, raised

    def _gone(self) -> None:
        with self._mutex:
            if self._busy is STOP:
                self._busy = None  # a job that it died at stays, to be failed
            self._ended = True

    def _call_loop(self, call: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return False
        return True


# --- looking at lanes ------------------------------------------------------------------------------------------------


_LOOKS = 4  # per timeout
_COMPUTES = 0.02  # of the time between two looks: a thread that sleeps in turns takes less
_STARVED = 10  # timeouts
_UNGUARDED_INTERVAL = 1.0
LOOK = 0.02
"""How often `Delays` looks, in seconds."""
_DELAYED_AFTER = 0.04
_SECONDS_PER_STEP = 20e-6  # what executing a run again takes for each event and command, about
_MOST_POINTS = 200_000  # fibers of a run that begin or end; that still more do is no progress


@dataclass
class _Watched:
    work: Work | None = None
    steps: int = 0
    seconds: float = 0.0
    computed: float = 0.0
    """How many of these the thread was computing, or may have been before the first look."""
    used: float | None = None
    """The processor time of the thread at the last look."""


class LaneGuard:
    """Finds the lanes that hang: an activation, or a chore, has been in work for longer than the deadlock timeout. A
    timeout of None or 0 switches it off.

    A lane that executes a long journal again, or begins, ends or unwinds thousands of fibers, gets its time anew with
    each activation and each fiber: only one that takes too long by itself is a hang. And only time counts in which
    the control loop was awake to see it. If the whole process stood still (a C call that held the interpreter, a
    paused machine), the lane is not to blame, and gets its time again. Nor does one hang that computes and gets too little of
    the processor for it: on a machine with too much to do it is waited for, up to ten times as long, until it has computed
    for half of the timeout.
    """

    def __init__(self, timeout: float | None, clock: Callable[[], float]) -> None:
        self.timeout = timeout or 0.0
        self.interval = self.timeout / _LOOKS if self.timeout else _UNGUARDED_INTERVAL
        self._clock = clock
        self._looked: float | None = None
        self._watched: dict[Lane, _Watched] = {}

    def look(self, lanes: list[Lane]) -> list[tuple[Lane, Work]]:
        """The lanes that hang, and at what. To be asked once per `interval`."""
        now = self._clock()
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.interval)
        self._looked = now
        if not self.timeout:
            return []
        self._watched = {lane: self._watched.get(lane) or _Watched() for lane in lanes}
        return [
            (lane, watched.work)
            for lane, watched in self._watched.items()
            if self._hangs(lane, watched, now, passed) and watched.work is not None
        ]

    def pause(self) -> None:
        """Nothing is in work: `look` is not called for a while, and that time must not count."""
        self._looked = None
        self._watched.clear()

    def _hangs(self, lane: Lane, watched: _Watched, now: float, passed: float) -> bool:
        work = lane.busy
        if work is None:
            watched.work = None
            return False
        steps = progress_of(lane.evaluations)
        used, before = lane.processor_time(), watched.used
        watched.used, recent = used, 0.0 if used is None or before is None else used - before
        if work is not watched.work:
            watched.work, watched.seconds, watched.steps = work, min(now - work.since, passed), steps
            watched.computed = watched.seconds
        elif steps != watched.steps:
            watched.seconds, watched.computed, watched.steps = 0.0, 0.0, steps
        else:
            watched.seconds += passed
            watched.computed += recent
        if watched.seconds < self.timeout:
            return False
        is_starved = recent > _COMPUTES * passed and watched.computed < self.timeout / 2
        if is_starved and watched.seconds < _STARVED * self.timeout:
            return False
        if _is_debugged(lane):
            watched.seconds = 0.0  # a developer who steps through the code may take any time
            return False
        return True


class Delays:
    """Finds, long before `LaneGuard` does, the lanes whose work takes so long that what is queued behind it should
    move.

    A lane must be seen at the same work at two looks at least: if the whole process stood still, it is news to the
    first.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Lane, tuple[Work, float]] = {}

    def look(self, lanes: list[Lane]) -> dict[Lane, float]:
        """The lanes that do not come back, and for how long they have not. To be asked once per `LOOK`."""
        now = self._clock()
        before, self._seen = self._seen, {}
        delayed: dict[Lane, float] = {}
        for lane in lanes:
            work = lane.busy
            if work is None:
                continue
            seen = before.get(lane)
            if seen is None or seen[0] is not work:
                seen = work, now
            elif now - seen[1] >= _DELAYED_AFTER and not _is_debugged(lane):
                delayed[lane] = now - seen[1]
            self._seen[lane] = seen
        return delayed


def is_worth_moving(delay: float, work: int) -> bool:
    """Whether a run that waits should be executed again elsewhere: once it has waited for as long as that takes."""
    return delay >= work * _SECONDS_PER_STEP


def _is_debugged(lane: Lane) -> bool:
    thread_id = lane.thread_id
    return thread_id is not None and is_debugged(thread_id, frame_of(thread_id))


def progress_of(evaluations: Evaluations) -> int:
    """A number that moves while a lane is long at something but does not hang: it executes a large run again, unwinds it, or
    begins and ends its fibers, unless there is no end of them.
    """
    entry = evaluations.suspect()
    live = entry.run.live if entry is not None else None
    return evaluations.steps + (min(live.turning_points, _MOST_POINTS) if live is not None else 0)
