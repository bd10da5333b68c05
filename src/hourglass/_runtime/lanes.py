"""Lanes: the threads that run workflow code. Activations go in by a queue, verdicts come back to the control loop.

A run is bound to the lane on which it started, because its fibers cannot leave the thread that made them. A
lane does no I/O of ours and holds no lock while workflow code runs; if it hangs, the control loop goes on.

Invariants: each activation given to a lane is answered once, in order, on the control loop (I3); verdicts
that come together wake the control loop once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from hourglass._engine.events import Activation, RunEvicted, RunStarted
from hourglass._runtime import debugging
from hourglass._runtime.evaluation import Counts, Evaluations, Verdict
from hourglass.activity._plain import runs_workflows

logger = logging.getLogger("hourglass.worker")

Reply: TypeAlias = Callable[[Verdict], object]
Job: TypeAlias = tuple[Activation, Reply]


class Lane:
    """One thread that runs workflow code, and its runs."""

    def __init__(self, name: str, evaluations: Evaluations, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.runs = 0
        self._evaluations = evaluations
        self._loop = loop
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._answers: deque[tuple[Reply, Verdict]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @property
    def counts(self) -> Counts:
        """What the lane has done so far."""
        return self._evaluations.counts

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, activation: Activation, reply: Reply) -> None:
        """Have an activation evaluated; `reply` is called with the verdict on the control loop."""
        self._jobs.put((activation, reply))

    def stop(self) -> None:
        """Finish what is queued, drop all fibers on this lane's thread, and end; waits for nothing."""
        self._jobs.put(None)

    def join(self, timeout: float) -> bool:
        """Wait for the thread's end after `stop`; True if it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # --- on the lane's thread ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        runs_workflows()
        while (job := self._jobs.get()) is not None:
            activation, reply = job
            self._answer(reply, self._evaluations.evaluate(activation))
            debugging.left(threading.get_ident())
            del job, activation, reply
        self._evaluations.close()

    def _answer(self, reply: Reply, verdict: Verdict) -> None:
        self._answers.append((reply, verdict))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                logger.warning("%s: the control loop is closed, an answer is lost", self.name)

    # --- on the control loop -----------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        self._woken = False  # first: an answer that comes from now on wakes us again
        while self._answers:
            reply, verdict = self._answers.popleft()
            try:
                reply(verdict)
            except Exception:
                logger.exception("a verdict could not be delivered")


class Lanes:
    """The lanes of one worker: gives each new run to the lane that has the fewest. Belongs to the control
    loop.
    """

    def __init__(self, lanes: list[Lane]) -> None:
        self._lanes = lanes
        self._homes: dict[str, Lane] = {}

    def start(self) -> None:
        """Start every lane."""
        for lane in self._lanes:
            lane.start()

    def submit(self, activation: Activation, reply: Reply) -> None:
        """Have an activation evaluated on its run's lane."""
        lane = self._lane_of(activation)
        lane.submit(activation, reply)

    def stop(self) -> None:
        """Let every lane finish and end; waits for nothing."""
        for lane in self._lanes:
            lane.stop()

    def join(self, timeout: float) -> bool:
        """Wait for the threads' end; False if one hangs. Not on the control loop."""
        ended = [lane.join(timeout) for lane in self._lanes]
        return all(ended)

    def counts(self) -> list[Counts]:
        """What each lane has done so far."""
        return [lane.counts for lane in self._lanes]

    def _lane_of(self, activation: Activation) -> Lane:
        run_id = activation.run_id
        home = self._homes.get(run_id)
        if any(isinstance(event, RunEvicted) for event in activation.events):
            if home is None:
                return self._lanes[0]
            del self._homes[run_id]
            home.runs -= 1
            return home
        if home is None:
            home = min(self._lanes, key=lambda lane: lane.runs)
            if any(isinstance(event, RunStarted) for event in activation.events):
                self._homes[run_id] = home
                home.runs += 1
        return home
