"""What a guardian decides: whether a process that ended is started again, when, and what to say about it. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

from hourglass._runtime.guardian_wire import REFUSED, REPLACE_ME

FIRST_DELAY, LAST_DELAY = 1.0, 30.0
HEALTHY_AFTER = 60.0
SILENCES = 2  # deadlock timeouts without a sign of life
_SHORTEST_SILENCE = 1.0  # a busy machine lets a process wait
_LOADING_LIMIT = 60.0
_BEATS = 8  # per limit
_UNWATCHED_INTERVAL = 1.0


@dataclass(frozen=True)
class Record:
    """How a process and those before it in its place have done: failures in a row, and whether one ever worked."""

    failures: int = 0
    worked: bool = False


@dataclass(frozen=True)
class Restart:
    """Start again, after so many seconds."""

    delay: float
    record: Record


@dataclass(frozen=True)
class GiveUp:
    """Starting again would change nothing."""

    code: int


def after_exit(record: Record, code: int, worked_for: float | None) -> Restart | GiveUp:
    """What to do about a process that ended unasked; `worked_for` is None if it never worked."""
    worked = record.worked or worked_for is not None
    if code == REFUSED and not worked:
        return GiveUp(REFUSED)
    healthy = worked_for is not None and worked_for >= HEALTHY_AFTER
    failures = 0 if healthy else record.failures
    delay = min(FIRST_DELAY * (1 << min(failures, 10)), LAST_DELAY)
    return Restart(delay, replace(record, failures=failures + 1, worked=worked))


def why(code: int) -> str:
    """How a process ended, for people."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    match code:
        case 0:
            return "ended, though nobody asked for it"
        case 2:
            return "could not start (exit code 2)"
        case _ if code == REPLACE_ME:
            return "asked to be replaced: too many of its threads cannot be stopped"
    return f"crashed with exit code {code}"


@dataclass(frozen=True)
class Silence:
    """How long a process may be silent. `limit` is None if it may be for ever."""

    limit: float | None

    @staticmethod
    def of(deadlock_timeout: float | None) -> Silence:
        """From a worker's deadlock timeout."""
        return Silence(max(SILENCES * deadlock_timeout, _SHORTEST_SILENCE) if deadlock_timeout else None)

    @property
    def interval(self) -> float:
        """How often it should beat."""
        return min(self.limit / _BEATS, _UNWATCHED_INTERVAL) if self.limit else _UNWATCHED_INTERVAL

    def allowed(self, *, loaded: bool) -> float | None:
        """For how long, in seconds: importing a large library may hold the interpreter for a while."""
        if self.limit is None or loaded:
            return self.limit
        return max(self.limit, _LOADING_LIMIT)
