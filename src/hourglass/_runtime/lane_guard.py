"""Notices lanes that hang: an activation, or a chore, has been in work for longer than the deadlock timeout.

A lane that executes a long journal again, or begins, ends or unwinds thousands of fibers, gets its time anew with each
activation and each fiber: only one that takes too long by itself is a hang. And only time counts in which the control
loop was awake to see it. If the whole process stood still — a C call that held the interpreter, a paused machine — the
lane is not to blame, and gets its time again.

And notices, long before that, lanes whose work takes so long that what waits behind it should not wait there (`Delays`).

Looks only: whoever asks replaces or relieves the lane. Runs on the control loop, never in the lane.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hourglass._runtime.evaluation import Evaluations
from hourglass._runtime.hung_stack import frame_of, is_debugged
from hourglass._runtime.lane import Lane, Work

_LOOKS = 4  # per timeout
_UNGUARDED_INTERVAL = 1.0
LOOK = 0.02
"""How often `Delays` looks, in seconds."""
_DELAYED_AFTER = 0.04
_SECONDS_PER_STEP = 20e-6  # what executing a run again takes for each event and command, about
_SHORT_TURN = 0.0005  # seconds; usual are 0.005
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
        if _is_debugged(lane):
            watched.seconds = 0.0  # whoever steps through the code takes their time
            return False
        return True


class Delays:
    """For how long each lane has been at one piece of work. Seen at two looks at least: if the whole process stood still, it
    is news to the first.
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


class Hurry:
    """While a lane does not come back, the interpreter goes round more often: code that spins keeps it for as long as it may,
    and every step of all others waits for that. The setting is the whole process's, and is put back afterwards.
    """

    _lock = threading.Lock()
    _hurrying: ClassVar[set[object]] = set()
    _usual: ClassVar[float] = 0.0

    def set(self, *, wanted: bool) -> None:
        """Hurry, or do no longer; another one may still want to."""
        if wanted == (self in self._hurrying):
            return
        with self._lock:
            if not self._hurrying:
                Hurry._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _SHORT_TURN))
            (self._hurrying.add if wanted else self._hurrying.discard)(self)
            if not self._hurrying:
                sys.setswitchinterval(self._usual)


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
