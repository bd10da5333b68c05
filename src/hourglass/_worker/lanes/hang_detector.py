"""Detection of lanes whose code does not return: delayed after some tens of milliseconds, hung after the deadlock
timeout.

`HangDetector` only observes lanes, on the control loop. `LaneSet` reacts. A lane is *delayed* when two checks, some
tens of milliseconds apart, find it busy with the same work: the runs that wait behind this work should move to another
lane. A lane *hangs* when one step of its work has taken the deadlock timeout: the task fails, and the lane is replaced.

The timeout starts again with each activation that a lane re-executes from a long journal, and with each fiber that the
lane starts, ends or unwinds. Only time during which the control loop was awake counts: if the whole process stood still
(a C call held the interpreter, or the machine was suspended), the lane is not to blame. A lane that computes but gets
too little CPU time does not count as hung either: on an overloaded machine it may take up to ten times the timeout,
until it has used half of the timeout as CPU time. A lane that a debugger has stopped is neither delayed nor hung.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from hourglass._worker.health.debuggers import is_debugged
from hourglass._worker.health.stacks import frame_of
from hourglass._worker.lanes.evaluation import Evaluations
from hourglass._worker.lanes.lane import Work

CHECK_INTERVAL = 0.02
"""The interval between two checks, in seconds."""
_DELAYED_AFTER = 0.04
_LONGEST_GAP = 0.5  # of the timeout; a longer time between two checks counts as this much
_COMPUTES = 0.02  # of the time between two checks; a thread that mostly sleeps uses less CPU time
_STARVED = 10  # a lane that is short of CPU time may take this many timeouts
_MOST_POINTS = 200_000  # fibers of a run that start or end; more do not count as progress


class ObservedLane(Protocol):
    """A thread that runs workflow code: a lane of a worker, or the thread of a test environment."""

    @property
    def busy(self) -> Work | None:
        """The work in progress."""
        ...

    @property
    def evaluations(self) -> Evaluations:
        """The `Evaluations` that execute the work."""
        ...

    @property
    def thread_id(self) -> int | None:
        """Python's id of the thread, None before it has started."""
        ...

    def cpu_time(self) -> float | None:
        """Return the thread's CPU time in seconds; None if unknown."""
        ...


L = TypeVar("L", bound=ObservedLane)


@dataclass
class HangReport(Generic[L]):
    """The result of a check: the delayed lanes with their delay in seconds, and the hung lanes with their work."""

    delayed: dict[L, float] = field(default_factory=dict)
    hung: list[tuple[L, Work]] = field(default_factory=list)


@dataclass
class _Observation:
    """The state of a lane that executes one piece of work. `since` is the time at which the work was first seen,
    `seconds` is the time without progress.
    """

    work: Work
    since: float
    steps: int
    seconds: float
    computed: float
    """The CPU time in seconds without progress. The time before the first check counts as CPU time, because it was not
    measured.
    """
    cpu_time: float | None


class HangDetector(Generic[L]):
    """Observes how long each lane has been executing its current work. With a timeout of None or 0, no lane counts as
    hung.
    """

    def __init__(self, timeout: float | None, clock: Callable[[], float]) -> None:
        self.timeout = timeout or 0.0
        self._clock = clock
        self._checked_at: float | None = None
        self._observations: dict[L, _Observation] = {}

    def check(self, lanes: Iterable[L]) -> HangReport[L]:
        """Return the lanes whose code does not return. Must be called every `CHECK_INTERVAL` seconds while there is work."""
        now = self._clock()
        passed = 0.0 if self._checked_at is None else now - self._checked_at
        if self.timeout:
            passed = min(passed, _LONGEST_GAP * self.timeout)
        self._checked_at = now
        report: HangReport[L] = HangReport()
        observations: dict[L, _Observation] = {}
        for lane in lanes:
            work = lane.busy
            if work is not None:
                before = self._observations.get(lane)
                observation = observations[lane] = self._observed(lane, work, before, now, passed)
                self._judge(lane, observation, now, passed, before, report)
        self._observations = observations
        return report

    def pause(self) -> None:
        """Forget all observations, because no work is in progress: the time until the next check must not count."""
        self._checked_at = None
        self._observations.clear()

    def _observed(
        self, lane: L, work: Work, before: _Observation | None, now: float, passed: float
    ) -> _Observation:
        steps, cpu_time = (progress_of(lane.evaluations), lane.cpu_time()) if self.timeout else (0, None)
        if before is None or before.work is not work:
            seconds = min(now - work.since, passed)
            return _Observation(work, now, steps, seconds, seconds, cpu_time)
        if steps != before.steps:
            return _Observation(work, before.since, steps, 0.0, 0.0, cpu_time)
        computed = before.computed + _difference(cpu_time, before.cpu_time)
        return _Observation(work, before.since, steps, before.seconds + passed, computed, cpu_time)

    def _judge(
        self,
        lane: L,
        observation: _Observation,
        now: float,
        passed: float,
        before: _Observation | None,
        report: HangReport[L],
    ) -> None:
        delay = now - observation.since
        is_hung = bool(self.timeout) and observation.seconds >= self.timeout
        if is_hung and observation.seconds < _STARVED * self.timeout:
            recent = _difference(observation.cpu_time, before.cpu_time if before is not None else None)
            is_hung = not (recent > _COMPUTES * passed and observation.computed < self.timeout / 2)
        if not is_hung and delay < _DELAYED_AFTER:
            return
        if _is_debugged(lane):
            observation.seconds = 0.0  # a developer who is debugging may take any time
            return
        if delay >= _DELAYED_AFTER:
            report.delayed[lane] = delay
        if is_hung:
            report.hung.append((lane, observation.work))


def progress_of(evaluations: Evaluations) -> int:
    """Return a number that increases while a slow lane makes progress.

    Progress means that the lane re-executes or unwinds a large run, or that the run's fibers start and end. The number
    of fibers that count is limited.
    """
    entry = evaluations.executing
    live = entry.run.live if entry is not None else None
    return evaluations.steps + (min(live.turning_points, _MOST_POINTS) if live is not None else 0)


def _difference(cpu_time: float | None, before: float | None) -> float:
    return 0.0 if cpu_time is None or before is None else cpu_time - before


def _is_debugged(lane: ObservedLane) -> bool:
    thread_id = lane.thread_id
    return thread_id is not None and is_debugged(thread_id, frame_of(thread_id))
