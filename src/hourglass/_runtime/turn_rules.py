"""Which Python's turns the runs take that temporalio began, by trial: histories do not say.

From Python 3.12 on `asyncio.wait_for`, and with it temporalio's `wait_condition`, and `asyncio.gather` of what is done already
take a turn less than before. A run of theirs that moves here takes the older turns first; where the engine finds that its
commands differ from those on record, the newer ones the next time, and so on by turns.

Must not know: lanes, engines, what a run does. For several threads: a run may come back to another lane. Invariant: it
holds at most so many run ids; one that was pushed out is tried by the older rule again, and costs one more failed task.
"""

from __future__ import annotations

import threading

import msgspec

from hourglass._engine.context import RunSettings
from hourglass._engine.events import RunEvicted
from hourglass._runtime.cache import Entry

_MOST = 10_000


class TurnRules:
    """Which runs take the newer turns."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._newer: dict[str, None] = {}

    def settings(self, run_id: str, usual: RunSettings) -> RunSettings:
        """The settings of a run that begins here."""
        return msgspec.structs.replace(usual, newer_turns=True) if run_id in self._newer else usual

    def learn(self, evicted: RunEvicted, entry: Entry | None) -> None:
        """The engine forgets a run: if that is because it does not fit its history, the other turns from now on."""
        if evicted.reason != "NONDETERMINISM" or entry is None or entry.run.is_ours:
            return
        run_id = entry.key.run_id
        with self._lock:
            if run_id in self._newer:
                del self._newer[run_id]
                return
            self._newer[run_id] = None
            if len(self._newer) > self._most:
                del self._newer[next(iter(self._newer))]
