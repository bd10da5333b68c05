"""The selection of the order of turns for runs that temporalio began, by trial and error (`TurnRules`)."""

from __future__ import annotations

import threading

import msgspec

from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.events import RunEvicted
from hourglass._worker.lanes.cache import Entry

_MOST_RUNS = 10_000


class TurnRules:
    """Chooses the Python version whose order of turns applies to a run that temporalio began. Histories do not record
    the version.

    From Python 3.12 on, two functions take one turn less than before: `asyncio.wait_for`, on which temporalio's
    `wait_condition` is based, and `asyncio.gather` of completed futures. A run of an unknown Python version starts with
    the older order. Each time the engine finds that the run's commands differ from its history, the next execution uses
    the other order.

    Must not know: lanes, engines, or the content of a run. Thread-safe, because a run may be re-executed on another
    lane. Invariant: at most `_MOST_RUNS` run ids are remembered. A forgotten run starts with the older order again,
    which costs one more failed task.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newer: dict[str, None] = {}

    def settings(self, run_id: str, usual: RunSettings) -> RunSettings:
        """Return the settings of a run that is executed from its start. They differ from `usual` if the run uses the
        newer order of turns.
        """
        return msgspec.structs.replace(usual, newer_turns=True) if run_id in self._newer else usual

    def learn(self, evicted: RunEvicted, entry: Entry | None) -> bool:
        """Switch a run that does not fit its history to the other order of turns. Return whether that order has not
        been tried yet.
        """
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
