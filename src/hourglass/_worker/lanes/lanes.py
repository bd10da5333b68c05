"""The lanes of a worker: each run has a lane, and a lane that hangs or dies is replaced.

A run stays on the lane on which it started, because its fibers cannot leave the thread that made them. Runs that wait
behind slow code move to another lane (`Relief`). When a lane hangs (`HangDetector`) its task fails with the stack of
the hung code, and a replacement lane takes over. All other runs continue there, rebuilt from their journals without the
engine, and the queued work moves in order. A run that hangs a second time is quarantined (`Quarantine`).

Invariants: each activation is answered once, on the control loop (I3), whatever happens to its lane; an abandoned lane
returns no verdicts (I5). Everything here belongs to the control loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from hourglass._evaluator.commands import Succeeded
from hourglass._evaluator.events import Activation, RunStarted, is_eviction
from hourglass._worker.health.parked import ParkedRuns, task_failed
from hourglass._worker.health.quarantine import HANGS
from hourglass._worker.health.stacks import HungStack, frame_of, take_stack
from hourglass._worker.health.stopping import Stopper
from hourglass._worker.lanes.cache import Entry
from hourglass._worker.lanes.counts import Counts
from hourglass._worker.lanes.evaluation import Evaluations, LaneContext, Verdict
from hourglass._worker.lanes.hang_detector import CHECK_INTERVAL, HangDetector
from hourglass._worker.lanes.lane import STOP, Lane, LaneJob, Reply, Work
from hourglass._worker.lanes.places import LanePlace, Places
from hourglass._worker.lanes.relief import Relief
from hourglass.errors import UsageError

logger = logging.getLogger("hourglass.worker")

DEADLOCK_TIMEOUT = 2.0
MAX_STUCK_LANES = 8
MAX_SPARE_LANES = 50
_ABANDONED_JOIN_LIMIT = 1.0
_THREAD_DELAY = 1.0


@dataclass(frozen=True)
class LaneStatus:
    """The state of one lane for `/status`. `stuck` is the number of the lane's former threads that cannot be stopped."""

    name: str
    runs: int
    queued: int
    replaced: int
    stuck: int


class LaneSet:
    """Assigns each run to a lane, and replaces lanes that hang or die."""

    def __init__(
        self,
        context: LaneContext,
        names: Sequence[str],
        *,
        deadlock_timeout: float | None = DEADLOCK_TIMEOUT,
        max_stuck_lanes: int = MAX_STUCK_LANES,
        max_spare_lanes: int = MAX_SPARE_LANES,
        on_too_many_stuck: Callable[[], object] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if len(set(names)) != len(names):
            raise UsageError("lanes must have different names")
        self._context = context
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._places = Places([self._lane(name, Evaluations(context)) for name in names])
        self._quarantine = context.quarantine
        self._detector: HangDetector[Lane] = HangDetector(deadlock_timeout, clock)
        self._relief = Relief(
            self._places, self._quarantine, self._started_lane, max_spares=max_spare_lanes, clock=clock
        )
        self._stopper = Stopper(max_stuck_lanes, self._too_many_stuck)
        self._on_too_many_stuck = on_too_many_stuck
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    def start(self) -> None:
        for lane in self._places.lanes():
            lane.start()

    def submit(self, activation: Activation, reply: Reply, *, generation: int = 0) -> None:
        """Queue an activation on its run's lane. `reply` is called with the verdict. `generation` is the generation of
        the handle that delivered the activation.
        """
        place = self._places.of_run.get((generation, activation.run_id))
        if place is None or is_eviction(activation):
            place = self._place_of(activation, generation)
        place.lane.submit(activation, reply, generation)
        if self._timer is None:
            self._arm()

    def attempt_ended(self, run_id: str, activity_id: str) -> None:
        self._quarantine.release(run_id, activity_id)

    def forget(self, generation: int, run_id: str) -> None:
        """Remove a run from the table of places."""
        self._places.forget((generation, run_id))

    def drop(self, entry: Entry) -> None:
        """Drop the fibers of a run that was removed from the cache, on the lane that owns them."""
        self._do(lambda evaluations: evaluations.drop(entry))

    def forget_older(self, generation: int) -> None:
        """Remove the runs of all handles older than this generation. The engine sends these runs again."""
        self._relief.forget_older(generation)
        self._places.forget_older(generation)
        self._do(lambda evaluations: evaluations.remove_older(generation))

    def stop(self) -> None:
        """Make every lane finish its queue and end. Does not wait."""
        self._stopping = True
        self._relief.stop()
        for place in self._places.staying():
            place.lane.stop()
        if self._timer is None:
            self._arm()

    def join(self, timeout: float) -> bool:
        """Wait until all threads have ended. Return False if a thread is still running after the timeout. Must not be
        called on the control loop, because it blocks.
        """
        ended = [lane.join(timeout) for lane in self._places.lanes()]
        limit = min(timeout, _ABANDONED_JOIN_LIMIT)
        ended += [lane.join(limit) for lane in self._stopper.abandoned()]
        return all(ended)

    def kill(self, name: str) -> None:
        """Abandon a lane as if it hung: its thread is stopped, and its task fails."""
        if name not in self._places:
            names = ", ".join(place.name for place in self._places)
            raise UsageError(f"unknown lane {name!r}; known lanes: {names}")
        self._replace(self._places[name].lane, "LaneKilled", "killed by request")

    @property
    def stuck(self) -> int:
        """The number of abandoned threads that cannot be stopped."""
        return self._stopper.stuck()

    @property
    def too_many_stuck(self) -> bool:
        """Whether so many threads are stuck that the process is not healthy."""
        return self._stopper.too_many

    @property
    def parked(self) -> ParkedRuns:
        """The parked runs of all lanes, as far as this process remembers them."""
        return self._context.parked

    def names(self) -> list[str]:
        """Return the names of the regular lanes. A replacement lane keeps the name of the lane that it replaces."""
        return [place.name for place in self._places.usual()]

    def counts(self) -> list[Counts]:
        """Return the counters of each lane, then the total of the spare lanes that have ended. All lanes share the
        parked runs, so only the first entry contains them.
        """
        first, *remaining = [lane.counts for lane in self._places.lanes()]
        return [first, *(replace(counts, parked={}) for counts in remaining), self._relief.ended]

    def status(self) -> list[LaneStatus]:
        return [
            LaneStatus(
                name=place.name,
                runs=place.runs,
                queued=place.lane.queued,
                replaced=place.replaced,
                stuck=self._stopper.stuck(place.name),
            )
            for place in self._places
        ]

    def check(self) -> None:
        """Replace lanes that hang or have died, and move runs away from delayed lanes. Called at intervals while there
        is work.
        """
        self._quarantine.distress = self._stopper.too_many
        report = self._detector.check(self._places.lanes())
        for lane, work in report.hung:
            self._lane_hangs(lane, work)
        for lane in self._places.lanes():
            if lane.ended and (lane.busy is not None or lane.queued):
                self._replace(lane, "LaneDied", "its thread has ended")
        self._relief.check(report.delayed)

    def _place_of(self, activation: Activation, generation: int) -> LanePlace:
        run = (generation, activation.run_id)
        if is_eviction(activation):
            return self._places.forget(run) or self._places.first
        if self._quarantine.runs and self._quarantine.is_suspect(activation.run_id):
            place = self._relief.place_for_suspects()
        else:
            place = self._places.least_busy()
        if RunStarted in map(type, activation.events):
            self._places.settle(run, place)
        return place

    def _do(self, chore: Callable[[Evaluations], None]) -> None:
        for place in self._places.staying():
            place.lane.do(chore)
        if self._timer is None:
            self._arm()

    def _arm(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # Usually there is no work, and nothing to restore after the last check.
        if not self._relief.is_calm or self._quarantine.distress or self._places.has_work():
            try:
                self.check()
            except Exception:
                logger.exception("the lanes could not be observed")
        if self._places.has_work():
            self._arm()
        else:
            self._detector.pause()

    def _too_many_stuck(self) -> None:
        self._quarantine.distress = True
        if self._on_too_many_stuck is not None:
            self._on_too_many_stuck()

    def _lane_died(self, lane: Lane, error: BaseException | None) -> None:
        self._replace(lane, "LaneDied", f"its thread ended with {type(error).__name__}")

    def _lane_hangs(self, lane: Lane, work: Work) -> None:
        stack = take_stack(frame_of(lane.thread_id))
        executing = lane.evaluations.executing
        reason = f"workflow code did not wait or return within {self._detector.timeout:g} s: {stack.place}"
        if self._replace(lane, "WorkflowHung", reason, stack, at=work) is None:
            return  # the code returned during this check
        run_id = work.activation.run_id if isinstance(work, LaneJob) else ""
        definition = None
        if executing is not None:
            run_id, definition = executing.key.run_id, executing.run.definition
        times = self._quarantine.add(run_id, definition, stack)
        self._context.parked.remember(run_id, f"WorkflowHung at {stack.place}: ")
        logger.error(
            "run %s hung %s on %s, which is replaced: %s%s\n%s",
            run_id,
            "for the first time" if times == 1 else f"{times} times",
            lane.name,
            reason,
            "" if times < HANGS else ". The run is quarantined until its code changes, or for a limited time",
            stack.text,
            extra={"run_id": run_id, "workflow_type": "" if definition is None else definition.name},
        )

    def _replace(
        self, lane: Lane, kind: str, reason: str, stack: HungStack | None = None, at: Work | None = None
    ) -> Lane | None:
        """Replace a lane and return the new one. Return None if the lane was replaced earlier, or no longer executes
        the work `at`.
        """
        place = self._places[lane.name]
        if place.lane is not lane:
            return None
        # First take all work from the lane: from here on the lane's answers are dropped, and the work can be given to
        # the replacement.
        remains = lane.abandon(at)
        if remains is None:
            return None
        job = remains.job
        failed, generation = (job.activation, job.generation) if job is not None else (None, 0)
        evaluations = lane.evaluations.hand_over(failed, generation)
        replacement = self._lane(lane.name, evaluations, thread_name=f"{lane.name}.{place.replaced + 1}")
        replacement.take_over(remains.queued)
        if (self._stopping or place.leaving) and STOP not in remains.queued:
            replacement.stop()
        place.lane, place.replaced = replacement, place.replaced + 1
        self._stopper.stop(lane, self._loop)
        if job is not None:
            job.answer(_failed(job, kind, reason, stack))
        self._start(replacement)
        return replacement

    def _lane(self, name: str, evaluations: Evaluations, thread_name: str = "") -> Lane:
        return Lane(
            name, evaluations, self._loop, self._lane_died, thread_name=thread_name, clock=self._clock
        )

    def _started_lane(self, name: str, evaluations: Evaluations) -> Lane:
        lane = self._lane(name, evaluations)
        self._start(lane)
        return lane

    def _start(self, lane: Lane) -> None:
        try:
            lane.start()
        except RuntimeError as error:
            logger.error("no thread could be started for %s: %s. The start is retried", lane.name, error)
            self._loop.call_later(_THREAD_DELAY, self._start_again, lane)
        if self._timer is None:
            self._arm()

    def _start_again(self, lane: Lane) -> None:
        if self._places[lane.name].lane is lane:
            self._start(lane)


def _failed(job: LaneJob, kind: str, reason: str, stack: HungStack | None) -> Verdict:
    run_id = job.activation.run_id
    if is_eviction(job.activation):
        return Verdict(
            Succeeded(run_id)
        )  # the run is removed nevertheless, and engines accept no other answer
    text = f"the lane of this run was replaced: {reason}"
    return Verdict(task_failed(run_id, kind, text, stack.text if stack else ""))
