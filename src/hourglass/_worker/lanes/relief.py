"""The relocation of runs that wait behind slow code to another lane (`Relief`).

The slow code may be a loop, a sleep, a lock, or just a long computation. After some tens of milliseconds the runs in
the lane's queue move to another lane, a spare one if necessary, and are re-executed there from their journals. The slow
run keeps its lane and its fibers. A spare lane gets new runs only if no other lane is free, and ends after some time
without work.

Everything here must be called on the control loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from hourglass._worker.health.quarantine import Quarantine
from hourglass._worker.lanes.counts import Counts
from hourglass._worker.lanes.evaluation import Evaluations
from hourglass._worker.lanes.lane import Lane, LaneJob
from hourglass._worker.lanes.places import LanePlace, Places

_IDLE_LIMIT = 5.0
_IDLE_LOOK = 1.0
_SECONDS_PER_STEP = 20e-6  # approximate time to re-execute one event or command of a run


class Relief:
    """Moves waiting runs away from delayed lanes, and manages the spare lanes. `make_lane` creates and starts a lane
    with the given name.
    """

    def __init__(
        self,
        places: Places,
        quarantine: Quarantine,
        make_lane: Callable[[str, Evaluations], Lane],
        *,
        max_spares: int,
        clock: Callable[[], float],
    ) -> None:
        self.ended = Counts()
        """The counters of spare lanes that have ended."""
        self.is_calm = True
        """Whether the last check found neither delayed lanes nor spare lanes."""
        self._places = places
        self._quarantine = quarantine
        self._make_lane = make_lane
        self._max_spares = max_spares
        self._clock = clock
        self._spares = 0  # spare lanes created so far
        self._suspects: LanePlace | None = None
        self._oldest_generation = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    def check(self, delayed: Mapping[Lane, float]) -> None:
        """Move runs away from the delayed lanes, and end idle spare lanes."""
        self.is_calm = not delayed and not self._spares
        if delayed and not self._stopping:
            for place in self._places.staying():
                delay = delayed.get(place.lane)
                if delay is not None and place.lane.queued:
                    self._relieve(place, delay, delayed)
        free = [place for place in self._places.staying() if place.lane not in delayed]
        self._places.open = [place for place in free if not place.spare] or free or self._places.usual()
        if self._spares:
            self._end_idle_spares()

    def place_for_suspects(self) -> LanePlace:
        """Return the single place for all runs that may kill the process. These runs are executed one at a time, so
        that a death has only one suspect.
        """
        if self._suspects is None or self._suspects.leaving:
            self._suspects = self._add_spare(self._places.first.lane)
        return self._suspects

    def forget_older(self, generation: int) -> None:
        """Stop moving runs of handles older than this generation, because their lanes are about to remove these runs."""
        self._oldest_generation = max(self._oldest_generation, generation)

    def stop(self) -> None:
        """Stop moving runs and ending spare lanes, because all lanes are about to end."""
        self._stopping = True

    def _relieve(self, place: LanePlace, delay: float, delayed: Mapping[Lane, float]) -> None:
        lane, work = place.lane, place.lane.busy
        free = [candidate for candidate in self._places.staying() if candidate.lane not in delayed]
        spares = sum(candidate.spare for candidate in self._places)
        if work is None or (not free and spares >= self._max_spares):
            return
        busy_run = work.activation.run_id if isinstance(work, LaneJob) else None

        def may_leave(job: LaneJob) -> bool:
            run_id = job.activation.run_id
            if run_id == busy_run or job.generation < self._oldest_generation:
                return False
            if self._quarantine.is_suspect(run_id):
                return False
            return is_worth_moving(delay, lane.evaluations.work_of(run_id, job.generation))

        jobs = lane.part_with(work, may_leave)
        if not jobs:
            return
        refuge = (
            min(free, key=lambda candidate: (candidate.spare, candidate.lane.queued))
            if free
            else self._add_spare(lane)
        )
        for job in jobs:
            self._move(job, place, refuge)
        refuge.lane.take_over(jobs)

    def _move(self, job: LaneJob, place: LanePlace, refuge: LanePlace) -> None:
        run_id = job.activation.run_id
        left = place.lane.evaluations.move(run_id, job.generation, refuge.lane.evaluations)
        if left is not None:
            # Greenlets can only be unwound by the thread that made them: the old lane does so when its code returns.
            place.lane.do(partial(Evaluations.drop, entry=left))
        self._places.move((job.generation, run_id), place, refuge)

    def _add_spare(self, lane: Lane) -> LanePlace:
        self._spares += 1
        name = f"{self._places.first.name}+{self._spares}"
        spare = self._make_lane(name, lane.evaluations.sibling())
        return self._places.add(LanePlace(spare, spare=True, used=self._clock()))

    def _end_idle_spares(self) -> None:
        now = self._clock()
        spares = [place for place in self._places if place.spare]
        for place in spares:
            if place.has_work:
                place.used = now
            elif place.leaving:
                if place.lane.ended:
                    self._places.remove(place)
                    self.ended.add(place.lane.counts)
            elif now - place.used >= _IDLE_LIMIT and not self._stopping:
                self._end(place)
        if spares and self._timer is None and not self._stopping:
            self._timer = asyncio.get_running_loop().call_later(_IDLE_LOOK, self._check_spares)

    def _check_spares(self) -> None:
        self._timer = None
        self._end_idle_spares()

    def _end(self, place: LanePlace) -> None:
        """End an idle spare lane. Its runs move to a regular lane."""
        usual = min(self._places.usual(), key=lambda candidate: candidate.runs)
        place.leaving = True
        place.lane.evaluations.move_all(usual.lane.evaluations)
        self._places.move_all(place, usual)
        usual.replaced, place.replaced = usual.replaced + place.replaced, 0
        self._places.open = [candidate for candidate in self._places.open if candidate is not place] or [
            usual
        ]
        place.lane.stop()


def is_worth_moving(delay: float, steps: int) -> bool:
    """Whether a run has waited longer than its re-execution on another lane is expected to take."""
    return delay >= steps * _SECONDS_PER_STEP
