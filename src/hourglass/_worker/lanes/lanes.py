"""The lanes of one worker: where each run lives, and how a lane that hangs or dies is replaced.

A run is bound to the lane on which it started, because its fibers cannot leave the thread that made them. What waits
behind code that does not come back at once (a loop, a sleep, a lock, or just long work) leaves for another lane, a spare one
if need be, and is executed there from its journal; the run that takes so long keeps its lane and its fibers. A spare lane
takes no new runs while another lane can, and ends when it has had nothing to do for a while.

When a lane is replaced, the activation that it was at fails with the stack of the code that hung; all its other runs go on
on the new thread, from their journals, without asking the engine; what was queued moves, in order.

`LaneGuard` and `Delays` only look, from the control loop, never in the lane; `LaneSet` acts on what they see.

Invariants: each activation is answered once, on the control loop (I3), whatever becomes of its lane; a lane that was
abandoned is not heard any more (I5). Everything here belongs to the control loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic

from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import Activation, RunStarted, is_eviction
from hourglass._worker.health.parked import ParkedRuns, task_failed
from hourglass._worker.health.quarantine import HANGS, Quarantine
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack
from hourglass._worker.health.stopping import Stopper
from hourglass._worker.lanes.cache import Entry, Key
from hourglass._worker.lanes.evaluation import Counts, Evaluations, Verdict
from hourglass._worker.lanes.lane import (
    LOOK,
    STOP,
    Delays,
    Lane,
    LaneGuard,
    LaneJob,
    Reply,
    Work,
    is_worth_moving,
)
from hourglass.errors import UsageError

__all__ = ["Lane", "LaneJob", "LaneSet", "LaneStatus", "Reply"]


# --- the lanes of a worker -------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

DEADLOCK_TIMEOUT = 2.0
MAX_STUCK_LANES = 8
MAX_SPARE_LANES = 50
_ABANDONED_JOIN_LIMIT = 1.0
_THREAD_DELAY = 1.0
_SPARE_IDLE_LIMIT = 5.0
_SPARE_LOOK = 1.0


@dataclass(frozen=True)
class LaneStatus:
    """A look at one lane, as `/status` shows it. `stuck` counts its former threads that cannot be stopped."""

    name: str
    runs: int
    queued: int
    replaced: int
    stuck: int


@dataclass(eq=False)
class _Place:
    """Where runs live: a name that stays while lanes come and go. `used` is when a spare lane last had something to do;
    one that is `leaving` has nothing any more, and ends.
    """

    lane: Lane
    runs: int = 0
    replaced: int = 0
    spare: bool = False
    used: float = 0.0
    leaving: bool = False


class _Homes(dict[tuple[int, str], _Place]):
    """Where each run that is kept here lives, also while nothing of it is in flight, by its handle's generation and its id.
    Invariant: `runs` of a place is how many live there.
    """

    def settle(self, run: tuple[int, str], place: _Place) -> None:
        """A run that was at home nowhere lives here from now on."""
        self[run] = place
        place.runs += 1

    def leave(self, run: tuple[int, str]) -> _Place | None:
        """A run is at home nowhere any more; gives where it was."""
        place = self.pop(run, None)
        if place is not None:
            place.runs -= 1
        return place

    def move(self, run: tuple[int, str], place: _Place, refuge: _Place) -> None:
        """A run that lives at one place, if it still does, lives at another."""
        if self.get(run) is place:
            self[run] = refuge
            place.runs, refuge.runs = place.runs - 1, refuge.runs + 1

    def move_all(self, place: _Place, refuge: _Place) -> None:
        """All that live at one place live at another."""
        for run in [run for run, home in self.items() if home is place]:
            self.move(run, place, refuge)


class LaneSet:
    """Gives each new run to the lane that has the fewest, and keeps the lanes working."""

    def __init__(
        self,
        lanes: list[Lane],
        *,
        deadlock_timeout: float | None = DEADLOCK_TIMEOUT,
        max_stuck_lanes: int = MAX_STUCK_LANES,
        max_spare_lanes: int = MAX_SPARE_LANES,
        on_too_many_stuck: Callable[[], object] | None = None,
        quarantine: Quarantine | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._places = {lane.name: _Place(lane) for lane in lanes}
        if len(self._places) != len(lanes):
            raise UsageError("lanes must have different names")
        self._homes = _Homes()
        self._quarantine = quarantine if quarantine is not None else Quarantine(clock=clock)
        self._guard = LaneGuard(deadlock_timeout, clock)
        self._delays = Delays(clock)
        self._is_calm = True  # whether the last look left nothing to put back
        self._max_spares = max_spare_lanes
        self._spares = 0  # made so far
        self._suspects = ""  # the name of the lane for runs that may kill the process
        self._open = list(self._places.values())  # for new runs
        self._former = Counts()  # what spare lanes have done that are no more
        self._oldest = 0  # of the generations that are wanted
        self._stopper = Stopper(max_stuck_lanes, self._too_many_stuck)
        self._on_too_many_stuck = on_too_many_stuck
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._spare_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        for lane in lanes:
            lane.evaluations.beside(lanes[0].evaluations)
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
        home = self._homes.get((generation, activation.run_id))
        if home is None or is_eviction(activation):
            home = self._place_of(activation, generation)
        home.lane.submit(activation, reply, generation)
        if self._timer is None:
            self._arm()

    def attempt_ended(self, run_id: str, activity: str) -> None:
        """A local activity of a run has ended."""
        self._quarantine.attempt_ended(run_id, activity)

    def forget(self, generation: int, run_id: str) -> None:
        """A run is at home nowhere any more."""
        self._homes.leave((generation, run_id))

    def drop(self, entry: Entry) -> None:
        """Have the fibers of a run that is in no cache any more unwound, by the lane that has them."""
        self._do(lambda evaluations: evaluations.let_go(entry))

    def forget_older(self, generation: int) -> None:
        """Drop all that belongs to handles before this generation: their engine sends the runs again."""
        self._oldest = max(self._oldest, generation)
        for home in [each for each in self._homes if each[0] < generation]:
            self._homes.leave(home)
        self._do(lambda evaluations: evaluations.forget_older(generation))

    def _do(self, chore: Callable[[Evaluations], None]) -> None:
        for place in self._staying():
            place.lane.do(chore)
        if self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Let every lane finish and end; waits for nothing."""
        self._stopping = True
        for place in self._staying():
            place.lane.stop()
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
        """The lanes' names, which stay when a lane is replaced; spare ones come and go, and are not among them."""
        return [name for name, place in self._places.items() if not place.spare]

    def counts(self) -> list[Counts]:
        """What each lane has done so far. What is parked is known to all, and told by the first."""
        first, *others = [lane.counts for lane in self._lanes()]
        return [first, *(replace(each, parked={}) for each in others), self._former]

    @property
    def parked(self) -> ParkedRuns:
        """The parked runs that this process remembers, of all lanes."""
        return self._lanes()[0].evaluations.parked_runs

    def status(self) -> list[LaneStatus]:
        """A look at each lane."""
        return [
            LaneStatus(
                name=name,
                runs=place.runs,
                queued=place.lane.queued,
                replaced=place.replaced,
                stuck=self._stopper.stuck(name),
            )
            for name, place in self._places.items()
        ]

    def _lanes(self) -> list[Lane]:
        return [place.lane for place in self._places.values()]

    def _staying(self) -> list[_Place]:
        return [place for place in self._places.values() if not place.leaving]

    def _place_of(self, activation: Activation, generation: int) -> _Place:
        run = (generation, activation.run_id)
        if is_eviction(activation):
            return self._homes.leave(run) or next(iter(self._places.values()))
        home = self._homes.get(run)
        if home is None:
            if self._quarantine.is_suspect(activation.run_id):
                home = self._for_suspects()
            else:
                home = min(self._open, key=lambda place: place.runs)
            if any(isinstance(event, RunStarted) for event in activation.events):
                self._homes.settle(run, home)
        return home

    # --- relieving ---------------------------------------------------------------------------------------------------

    def relieve(self) -> None:
        """Let leave what waits behind work that does not come back. The timer asks while there is work."""
        delayed = self._delays.look(self._lanes())
        self._is_calm = not delayed and not self._spares
        if delayed and not self._stopping:
            for place in self._staying():
                delay = delayed.get(place.lane)
                if delay is not None and place.lane.queued:
                    self._relieve(place, delay, delayed)
        free = [place for place in self._staying() if place.lane not in delayed]
        usual = [place for place in free if not place.spare]
        self._open = usual or free or [place for place in self._places.values() if not place.spare]
        if self._spares:
            self._tend_spares()

    def _relieve(self, place: _Place, delay: float, delayed: Mapping[Lane, float]) -> None:
        lane, work = place.lane, place.lane.busy
        free = [each for each in self._staying() if each.lane not in delayed]
        spares = sum(each.spare for each in self._places.values())
        if work is None or (not free and spares >= self._max_spares):
            return
        itself = work.activation.run_id if isinstance(work, LaneJob) else None
        evaluations = lane.evaluations

        def may_leave(job: LaneJob) -> bool:
            run_id = job.activation.run_id
            if run_id == itself or job.generation < self._oldest or self._quarantine.is_suspect(run_id):
                return False
            key = Key(evaluations.task_queue, run_id, job.generation)
            return is_worth_moving(delay, evaluations.work_of(key))

        jobs = lane.part_with(work, may_leave)
        if not jobs:
            return
        refuge = min(free, key=lambda each: (each.spare, each.lane.queued)) if free else self._add_spare(lane)
        for job in jobs:
            self._move(job, place, refuge)
        refuge.lane.take_over(jobs)

    def _move(self, job: LaneJob, place: _Place, refuge: _Place) -> None:
        run = (job.generation, job.activation.run_id)
        key = Key(place.lane.evaluations.task_queue, job.activation.run_id, job.generation)
        left = place.lane.evaluations.pass_on(key, refuge.lane.evaluations)
        if left is not None:
            # Greenlets can be unwound by the thread that made them only: the old lane does it when it comes back.
            place.lane.do(partial(Evaluations.let_go, entry=left))
        self._homes.move(run, place, refuge)

    def _add_spare(self, beside: Lane) -> _Place:
        assert self._loop is not None
        self._spares += 1
        name = f"{next(iter(self._places))}+{self._spares}"
        lane = Lane(name, beside.evaluations.sibling(), self._loop, clock=self._clock)
        lane.on_died = self._lane_died
        place = self._places[name] = _Place(lane, spare=True, used=self._clock())
        self._begin(lane)
        return place

    def _for_suspects(self) -> _Place:
        """The one lane for all runs of which one may kill the process: they execute one at a time, so that a death
        has one suspect.
        """
        place = self._places.get(self._suspects)
        if place is None or place.leaving:
            place = self._add_spare(next(iter(self._places.values())).lane)
            self._suspects = place.lane.name
        return place

    def _tend_spares(self) -> None:
        now = self._clock()
        for name, place in list(self._places.items()):
            if not place.spare:
                continue
            if place.lane.busy is not None or place.lane.queued:
                place.used = now
            elif place.leaving:
                if place.lane.ended:
                    del self._places[name]
                    self._former.add(place.lane.counts)
            elif now - place.used >= _SPARE_IDLE_LIMIT and not self._stopping:
                self._let_go(place)
        if self._spare_timer is None and self._loop is not None and not self._stopping and self._has_spares():
            self._spare_timer = self._loop.call_later(_SPARE_LOOK, self._look_at_spares)

    def _look_at_spares(self) -> None:
        self._spare_timer = None
        self._tend_spares()

    def _has_spares(self) -> bool:
        return any(place.spare for place in self._places.values())

    def _let_go(self, place: _Place) -> None:
        """A spare lane has nothing to do: its runs go back, as data, and it ends."""
        usual = min((each for each in self._places.values() if not each.spare), key=lambda each: each.runs)
        place.leaving = True
        place.lane.evaluations.leave_to(usual.lane.evaluations)
        self._homes.move_all(place, usual)
        usual.replaced, place.replaced = usual.replaced + place.replaced, 0
        self._open = [each for each in self._open if each is not place] or [usual]
        place.lane.stop()

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
            self._timer = self._loop.call_later(min(self._guard.interval, LOOK), self._tick)

    def _tick(self) -> None:
        self._timer = None
        # Most looks find that all is done, and that the last one left nothing to put back.
        if not self._is_calm or self._quarantine.distress or self._has_work():
            try:
                self.check()
                self.relieve()
            except Exception:
                logger.exception("the lanes could not be looked at")
        if self._has_work():
            self._arm()
        else:
            self._guard.pause()

    def _has_work(self) -> bool:
        return any(place.lane.busy is not None or place.lane.queued for place in self._places.values())

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
        successor = self._replace(lane, "WorkflowHung", reason, stack, at=work)
        if successor is None:
            return  # it came back while it was looked at
        run_id = work.activation.run_id if isinstance(work, LaneJob) else ""
        definition = None
        if suspect is not None:
            run_id, definition = suspect.key.run_id, suspect.run.definition
        times = self._quarantine.add(run_id, definition, stack)
        successor.evaluations.park_hung(run_id, stack.place)
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
            extra={"run_id": run_id, "workflow_type": "" if definition is None else definition.name},
        )

    def _replace(
        self, lane: Lane, kind: str, reason: str, stack: HungStack | None = None, at: Work | None = None
    ) -> Lane | None:
        """Put a new lane in the place of one; None if that has happened already, or it is not at that work any more."""
        place = self._places[lane.name]
        if place.lane is not lane or self._loop is None:
            return None
        # First take everything from the lane: from here on its answers are dropped, and its successor may have it.
        remains = lane.abandon(at)
        if remains is None:
            return None
        job = remains.job
        failed, generation = (job.activation, job.generation) if job is not None else (None, 0)
        successor = self._successor(place, lane.evaluations.hand_over(failed, generation))
        successor.take_over(remains.queued)
        if (self._stopping or place.leaving) and STOP not in remains.queued:
            successor.stop()
        place.lane, place.replaced = successor, place.replaced + 1
        self._stopper.stop(lane, self._loop)
        if job is not None:
            job.answer(_failed(job, kind, reason, stack))
        self._begin(successor)
        return successor

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
        successor = Lane(
            name, evaluations, self._loop, thread_name=f"{name}.{place.replaced + 1}", clock=self._clock
        )
        successor.on_died = self._lane_died
        return successor


def _failed(job: LaneJob, kind: str, reason: str, stack: HungStack | None) -> Verdict:
    run_id = job.activation.run_id
    if is_eviction(job.activation):
        return Verdict(Succeeded(run_id))  # it is forgotten all the same; engines take nothing else
    text = f"the lane of this run was replaced: {reason}"
    return Verdict(task_failed(run_id, kind, text, stack.text if stack else ""))
