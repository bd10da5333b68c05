"""The lanes of one worker: where each run lives, and how a lane that hangs or dies is replaced.

A run is bound to the lane on which it started, because its fibers cannot leave the thread that made them. When a lane is
replaced, the activation that it was at fails with the stack of the code that hung; all its other runs go on
on the new thread, from their journals, without asking the engine; what was queued moves, in order.

Invariants: each activation is answered once, on the control loop (I3), whatever becomes of its lane; a lane that was
abandoned is not heard any more (I5). Everything here belongs to the control loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from hourglass._bridge.handle_record import is_eviction
from hourglass._engine.commands import Succeeded
from hourglass._engine.events import Activation, RunStarted
from hourglass._runtime.cache import Entry
from hourglass._runtime.evaluation import Counts, Evaluations, Verdict, let_go
from hourglass._runtime.gil_watchdog import GilWatchdog
from hourglass._runtime.hung_stack import HungStack, frame_of, take_stack
from hourglass._runtime.lane import STOP, Job, Lane, Reply, Work
from hourglass._runtime.lane_guard import LaneGuard
from hourglass._runtime.lane_stopping import Stopper
from hourglass._runtime.parked import task_failed
from hourglass._runtime.quarantine import HANGS, Quarantine
from hourglass.errors import UsageError

__all__ = ["Job", "Lane", "LaneSet", "LaneStatus", "Lanes", "Reply"]

logger = logging.getLogger("hourglass.worker")

DEADLOCK_TIMEOUT = 2.0
MAX_STUCK_LANES = 8
_ABANDONED_JOIN_LIMIT = 1.0
_THREAD_DELAY = 1.0


@dataclass(frozen=True)
class LaneStatus:
    """A look at one lane. `busy_since` is monotonic time; `stuck` counts its former threads that cannot be stopped."""

    name: str
    runs: int
    queued: int
    busy_since: float | None
    run_id: str | None
    replaced: int
    stuck: int


@dataclass(eq=False)
class _Place:
    """Where runs live: a name that stays while lanes come and go."""

    lane: Lane
    runs: int = 0
    replaced: int = 0


class LaneSet:
    """Gives each new run to the lane that has the fewest, and keeps the lanes working."""

    def __init__(
        self,
        lanes: list[Lane],
        *,
        deadlock_timeout: float | None = DEADLOCK_TIMEOUT,
        max_stuck_lanes: int = MAX_STUCK_LANES,
        on_too_many_stuck: Callable[[], object] | None = None,
        on_replaced: Callable[[str, str], object] | None = None,
        quarantine: Quarantine | None = None,
        watchdog: GilWatchdog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = {lane.name: _Place(lane) for lane in lanes}
        if len(self._places) != len(lanes):
            raise UsageError("lanes must have different names")
        self._homes: dict[tuple[int, str], _Place] = {}
        self._quarantine = quarantine if quarantine is not None else Quarantine(clock=clock)
        self._guard = LaneGuard(deadlock_timeout, clock)
        self._stopper = Stopper(max_stuck_lanes, self._too_many_stuck)
        self._on_too_many_stuck = on_too_many_stuck
        self._on_replaced = on_replaced
        self._watchdog = watchdog
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        for lane in lanes:
            lane.evaluations.quarantine = self._quarantine
            lane.on_died = self._lane_died

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every lane. On the control loop."""
        self._loop = asyncio.get_running_loop()
        for lane in self._lanes():
            lane.start()

    def submit(self, activation: Activation, reply: Reply, *, generation: int = 0) -> None:
        """Have an activation evaluated on its run's lane. `generation` is its handle's."""
        self._place_of(activation, generation).lane.submit(activation, reply, generation)
        if self._timer is None:
            self._arm()

    def forget(self, generation: int, run_id: str) -> None:
        """A run is at home nowhere any more."""
        home = self._homes.pop((generation, run_id), None)
        if home is not None:
            home.runs -= 1

    def drop(self, entry: Entry) -> None:
        """Have the fibers of a run that is in no cache any more unwound, by the lane that has them."""
        self._do(lambda evaluations: let_go(evaluations, entry))

    def forget_older(self, generation: int) -> None:
        """Drop all that belongs to handles before this generation: their engine sends the runs anew."""
        for home in [each for each in self._homes if each[0] < generation]:
            self._homes.pop(home).runs -= 1
        self._do(lambda evaluations: evaluations.forget_older(generation))

    def _do(self, chore: Callable[[Evaluations], None]) -> None:
        for lane in self._lanes():
            lane.do(chore)
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Let every lane finish and end; waits for nothing."""
        self._stopping = True
        for lane in self._lanes():
            lane.stop()
        if self._timer is None:
            self._arm()

    def join(self, timeout: float) -> bool:
        """Wait for the threads' end; False if one hangs. Not on the control loop."""
        ended = [lane.join(timeout) for lane in self._lanes()]
        limit = min(timeout, _ABANDONED_JOIN_LIMIT)
        ended += [lane.wait_ended(limit) for lane in self._stopper.abandoned()]
        return all(ended)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def stuck(self) -> int:
        """How many abandoned threads cannot be stopped."""
        return self._stopper.stuck()

    @property
    def too_many_stuck(self) -> bool:
        """Whether there are more of them than this process can be trusted with."""
        return self._stopper.too_many

    def names(self) -> list[str]:
        """The lanes' names, which stay when a lane is replaced."""
        return list(self._places)

    def counts(self) -> list[Counts]:
        """What each lane has done so far."""
        return [lane.counts for lane in self._lanes()]

    def status(self) -> list[LaneStatus]:
        """A look at each lane."""
        return [self._status(name, place) for name, place in self._places.items()]

    def _status(self, name: str, place: _Place) -> LaneStatus:
        busy = place.lane.busy
        return LaneStatus(
            name=name,
            runs=place.runs,
            queued=place.lane.queued,
            busy_since=busy.since if busy is not None else None,
            run_id=busy.activation.run_id if isinstance(busy, Job) else None,
            replaced=place.replaced,
            stuck=self._stopper.stuck(name),
        )

    def _lanes(self) -> list[Lane]:
        return [place.lane for place in self._places.values()]

    def _place_of(self, activation: Activation, generation: int) -> _Place:
        run = (generation, activation.run_id)
        home = self._homes.get(run)
        if is_eviction(activation):
            if home is None:
                return next(iter(self._places.values()))
            del self._homes[run]
            home.runs -= 1
            return home
        if home is None:
            home = min(self._places.values(), key=lambda place: place.runs)
            if any(isinstance(event, RunStarted) for event in activation.events):
                self._homes[run] = home
                home.runs += 1
        return home

    # --- replacing ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Replace what hangs or is dead. The timer asks once per interval while there is work."""
        self._quarantine.distress = self._stopper.too_many
        for lane, work in self._guard.look(self._lanes()):
            self._lane_hangs(lane, work)
        for lane in self._lanes():
            if lane.ended and (lane.busy is not None or lane.queued):
                self._replace(lane, "LaneDied", "its thread is gone")

    def kill(self, name: str) -> None:
        """Abandon a lane brutally, as if it hung: its thread is told to die, the activation in work fails."""
        if name not in self._places:
            raise UsageError(f"there is no lane {name!r}, only {', '.join(self._places)}")
        self._replace(self._places[name].lane, "LaneKilled", "it was killed")

    def _arm(self) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(self._guard.interval, self._tick)
            if self._watchdog is not None:
                self._watchdog.feed()

    def _tick(self) -> None:
        self._timer = None
        try:
            self.check()
        except Exception:
            logger.exception("the lanes could not be looked at")
        if any(lane.busy is not None or lane.queued for lane in self._lanes()):
            self._arm()
        else:
            self._guard.pause()
            if self._watchdog is not None:
                self._watchdog.rest()

    def _lane_died(self, lane: Lane, error: BaseException | None) -> None:
        self._replace(lane, "LaneDied", f"its thread ended with {type(error).__name__}")

    def _too_many_stuck(self) -> None:
        self._quarantine.distress = True
        if self._on_too_many_stuck is not None:
            self._on_too_many_stuck()

    def _lane_hangs(self, lane: Lane, work: Work) -> None:
        stack = take_stack(frame_of(lane.thread_id))
        suspect = lane.evaluations.suspect()
        reason = f"workflow code did not wait or return within {self._guard.timeout:g} s: {stack.place}"
        heir = self._replace(lane, "WorkflowHung", reason, stack, at=work)
        if heir is None:
            return  # it came back while it was looked at
        run_id = work.activation.run_id if isinstance(work, Job) else ""
        definition = None
        if suspect is not None:
            run_id, definition = suspect.key.run_id, suspect.run.definition
        times = self._quarantine.add(run_id, definition, stack)
        heir.evaluations.park_hung(run_id, stack.place)
        logger.error(
            "run %s hung %s on %s and its lane is replaced: %s%s\n%s",
            run_id,
            "for the first time" if times == 1 else f"{times} times",
            lane.name,
            reason,
            ""
            if times < HANGS
            else ". It is not executed again before its code changes or a while has passed",
            stack.text,
        )

    def _replace(
        self, lane: Lane, kind: str, reason: str, stack: HungStack | None = None, at: Work | None = None
    ) -> Lane | None:
        """Put a new lane in the place of one; None if that has happened already, or it is not at that work any more."""
        place = self._places[lane.name]
        if place.lane is not lane or self._loop is None:
            return None
        remains = lane.abandon(at)
        if remains is None:
            return None
        job = remains.job
        failed, generation = (job.activation, job.generation) if job is not None else (None, 0)
        heir = self._successor(place, lane.evaluations.hand_over(failed, generation))
        heir.take_over(remains.queued)
        if self._stopping and STOP not in remains.queued:
            heir.stop()
        place.lane, place.replaced = heir, place.replaced + 1
        self._stopper.tell(lane, self._loop)
        if job is not None:
            job.answer(_failed(job, kind, reason, stack))
        self._begin(heir)
        if self._on_replaced is not None:
            self._on_replaced(lane.name, f"{kind}: {reason}")
        return heir

    def _begin(self, lane: Lane) -> None:
        assert self._loop is not None
        try:
            lane.start()
        except RuntimeError as error:
            logger.error("no thread for %s: %s. It is tried again", lane.name, error)
            self._loop.call_later(_THREAD_DELAY, self._begin_again, lane)
        if self._timer is None:
            self._arm()

    def _begin_again(self, lane: Lane) -> None:
        if self._places[lane.name].lane is lane:
            self._begin(lane)

    def _successor(self, place: _Place, evaluations: Evaluations) -> Lane:
        assert self._loop is not None
        name = place.lane.name
        heir = Lane(
            name, evaluations, self._loop, thread_name=f"{name}.{place.replaced + 1}", clock=self._clock
        )
        heir.on_died = self._lane_died
        return heir


Lanes = LaneSet


def _failed(job: Job, kind: str, reason: str, stack: HungStack | None) -> Verdict:
    run_id = job.activation.run_id
    if is_eviction(job.activation):
        return Verdict(Succeeded(run_id))  # it is forgotten all the same; engines take nothing else
    text = f"the lane of this run was replaced: {reason}"
    return Verdict(task_failed(run_id, kind, text, stack.text if stack else ""))
