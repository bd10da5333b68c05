"""PURE: the decision of a supervisor when a child has ended.

No loop, no clock, no process: the input is the restart kinds of the children in order, a time, and the times of
past restarts. The supervisor carries out the decision.

- A temporary child is never restarted, a transient child only after a crash or a kill, and a permanent child
  always.
- Siblings that are stopped with the child are restarted in order, except temporary siblings. A transient
  sibling that had already ended normally is also restarted, because it may have prepared state for the siblings
  that ended.
- Up to `max_restarts` restarts within `window` seconds are allowed. If more are needed, the supervisor fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hourglass._supervision.exits import Exit, SpecError
from hourglass._supervision.spec import RestartKind, Strategy

History: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Intensity:
    """The maximum restart frequency of a supervisor before it fails itself: `max_restarts` within `window`
    seconds.
    """

    max_restarts: int = 3
    window: float = 5.0

    def __post_init__(self) -> None:
        count, window = self.max_restarts, self.window
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise SpecError(f"supervisor: max_restarts must be an int of at least 0, not {count!r}")
        if not isinstance(window, (int, float)) or not math.isfinite(window) or window <= 0:
            raise SpecError(f"supervisor: window must be a number of seconds above 0, not {window!r}")


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The decision not to restart the child."""


@dataclass(frozen=True, slots=True)
class RestartChildren:
    """The decision to stop the children `stop`, in this order, and then start the children `start`. `history`
    is the new list of restart times.
    """

    stop: tuple[int, ...]
    start: tuple[int, ...]
    history: History


@dataclass(frozen=True, slots=True)
class Escalate:
    """The decision to fail after too many restarts: the supervisor stops all its children and fails."""


Decision: TypeAlias = NoRestart | RestartChildren | Escalate


def decide(
    strategy: Strategy,
    children: Sequence[RestartKind],
    failed: int,
    reason: Exit,
    history: History,
    now: float,
    *,
    intensity: Intensity,
    counted: bool = True,
) -> Decision:
    """Decide what to do after child `failed` has ended with `reason`. `counted` is False for a child with a
    backoff, because its restarts do not count towards the intensity.
    """
    if not restarts(children[failed], reason):
        return NoRestart()
    recent = tuple(time for time in history if now - time <= intensity.window)
    if counted:
        recent = (*recent, now)
        if len(recent) > intensity.max_restarts:
            return Escalate()
    stopped = _stopped(strategy, len(children), failed)
    started = sorted(
        (failed, *(sibling for sibling in stopped if children[sibling] != "temporary")),
    )
    return RestartChildren(stopped, tuple(started), recent)


def restarts(kind: RestartKind, reason: Exit) -> bool:
    """Return whether a child of this kind is restarted after this exit."""
    match kind:
        case "permanent":
            return True
        case "transient":
            return reason.abnormal
        case "temporary":
            return False


def delay_before(backoff: tuple[float, float] | None, failures: int) -> float:
    """Return the delay before the next restart. `failures` is the number of previous consecutive failures."""
    if backoff is None:
        return 0.0
    first, maximum = backoff
    # Limit the exponent, so that a server that is down for a year does not overflow a float.
    return min(maximum, first * 2.0 ** min(failures, 64))


def _stopped(strategy: Strategy, count: int, failed: int) -> tuple[int, ...]:
    """Return the siblings to stop with the failed child, in reverse order of start."""
    match strategy:
        case "one_for_one":
            return ()
        case "one_for_all":
            return tuple(sibling for sibling in reversed(range(count)) if sibling != failed)
        case "rest_for_one":
            return tuple(reversed(range(failed + 1, count)))
