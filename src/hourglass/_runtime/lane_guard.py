"""Notices lanes that hang: an activation, or a chore, has been in work for longer than the deadlock timeout.

A lane that executes a long journal again, or begins, ends or unwinds thousands of fibers, gets its time anew with each
activation and each fiber: only one that takes too long by itself is a hang. And only time counts in which the control
loop was awake to see it. If the whole process stood still — a C call that held the interpreter, a paused machine — the
lane is not to blame, and gets its time again.

Looks only: whoever asks replaces the lane. Runs on the control loop, never in the lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hourglass._runtime.evaluation import Evaluations
from hourglass._runtime.hung_stack import frame_of, is_debugged
from hourglass._runtime.lane import Lane, Work

_LOOKS = 4  # per timeout
_UNGUARDED_INTERVAL = 1.0
_MOST_POINTS = 200_000  # fibers of a run that begin or end; that still more do is no progress


@dataclass
class _Watched:
    work: Work | None = None
    steps: int = 0
    seconds: float = 0.0


class LaneGuard:
    """Watches lanes. A timeout of None or 0 switches it off."""

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
        """Nothing is in work: nobody looks for a while."""
        self._looked = None
        self._watched.clear()

    def _hangs(self, lane: Lane, watched: _Watched, now: float, passed: float) -> bool:
        work = lane.busy
        if work is None:
            watched.work = None
            return False
        steps = progress_of(lane.evaluations)
        if work is not watched.work:
            watched.work, watched.seconds, watched.steps = work, min(now - work.since, passed), steps
        elif steps != watched.steps:
            watched.seconds, watched.steps = 0.0, steps
        else:
            watched.seconds += passed
        if watched.seconds < self.timeout:
            return False
        thread_id = lane.thread_id
        if thread_id is not None and is_debugged(thread_id, frame_of(thread_id)):
            watched.seconds = 0.0  # whoever steps through the code takes their time
            return False
        return True


def progress_of(evaluations: Evaluations) -> int:
    """A number that moves while a lane is long at something but does not hang: it executes a large run again, unwinds it, or
    begins and ends its fibers, unless there is no end of them.
    """
    entry = evaluations.suspect()
    live = entry.run.live if entry is not None else None
    return evaluations.steps + (min(live.turning_points, _MOST_POINTS) if live is not None else 0)
