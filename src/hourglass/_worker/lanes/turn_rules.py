"""The order of turns for runs that temporalio began, by trial (`TurnRules`)."""

from __future__ import annotations

import threading

import msgspec

from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.events import RunEvicted
from hourglass._worker.lanes.cache import Entry

_MOST_RUNS = 10_000


class TurnRules:
    """Chooses the Python version whose turns apply to runs that temporalio began: histories do not say.

    From Python 3.12 on, `asyncio.wait_for`, and with it temporalio's `wait_condition`, and `asyncio.gather` of
    completed futures take one turn less than before. Such a run takes the older turns first. When the engine finds
    that its commands differ from the recorded ones, it takes the newer turns the next time, and so on alternately.

    Must not know lanes, engines, or what a run does. Thread-safe: a run may come back to another lane. Invariant: at
    most `_MOST_RUNS` run ids are remembered. A forgotten run takes the older turns again, which costs one more failed
    task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newer: dict[str, None] = {}

    def settings(self, run_id: str, usual: RunSettings) -> RunSettings:
        """Return the settings of a run that starts here."""
        return msgspec.structs.replace(usual, newer_turns=True) if run_id in self._newer else usual

    def learn(self, evicted: RunEvicted, entry: Entry | None) -> bool:
        """Switch a run that does not fit its history to the other turns. Return whether these are untried yet."""
        if evicted.reason != "NONDETERMINISM" or entry is None or not entry.run.behaviour.python_is_unknown:
            return False
        run_id = entry.key.run_id
        with self._lock:
            if run_id in self._newer:
                del self._newer[run_id]
                return False
            self._newer[run_id] = None
            if len(self._newer) > _MOST_RUNS:
                del self._newer[next(iter(self._newer))]
            return True
