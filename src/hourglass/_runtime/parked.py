"""Which runs cannot go on, and why, so that it is said once per run and reason. Bounded; for several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict

_REMEMBERED = 1000


class ParkedRuns:
    """The runs of one lane that are parked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: OrderedDict[str, str] = OrderedDict()

    def remember(self, run_id: str, reason: str) -> bool:
        """Note why a run cannot go on; False if that is known."""
        with self._lock:
            known = self._reasons.get(run_id) == reason
            self._reasons[run_id] = reason
            self._reasons.move_to_end(run_id)
            while len(self._reasons) > _REMEMBERED:
                self._reasons.popitem(last=False)
            return not known

    def forget(self, run_id: str) -> bool:
        """A run goes on; True if it was parked."""
        if not self._reasons:
            return False
        with self._lock:
            return self._reasons.pop(run_id, None) is not None

    def kinds(self) -> dict[str, str]:
        """What kind of error and where, by run: never the message, which may quote data."""
        with self._lock:
            return {run_id: reason.partition(": ")[0] for run_id, reason in self._reasons.items()}

    def copy(self) -> ParkedRuns:
        """The same, for a lane that takes over."""
        other = ParkedRuns()
        with self._lock:
            other._reasons.update(self._reasons)
        return other
