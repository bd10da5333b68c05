"""PURE: what a supervisor does when a child has ended.

No loop, no clock, no process: children are their restart kinds in order, time is a number, the past is a tuple of times.
The supervisor applies the verdict.

- A temporary child is never restarted, a transient one after a crash or a kill only, a permanent one always.
- Siblings that a cascade stops are started again in order, but for temporary ones. A transient sibling that had ended
  normally runs again with the cascade: what it prepared was prepared for the siblings that died.
- Up to `max_restarts` restarts within `window` seconds; one more, and the supervisor gives up.
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
    """How often a supervisor may restart before it fails itself: `max_restarts` within `window` seconds."""

    max_restarts: int = 3
    window: float = 5.0

    def __post_init__(self) -> None:
        count, window = self.max_restarts, self.window
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise SpecError(f"supervisor: max_restarts must be a whole number from 0, not {count!r}")
        if not isinstance(window, (int, float)) or not math.isfinite(window) or window <= 0:
            raise SpecError(f"supervisor: window must be seconds above 0, not {window!r}")


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The child stays ended."""


@dataclass(frozen=True, slots=True)
class RestartChildren:
    """Stop these, in this order; then start those, in that order. `history` is the past from now on."""

    stop: tuple[int, ...]
    start: tuple[int, ...]
    history: History


@dataclass(frozen=True, slots=True)
class Escalate:
    """Too many restarts: the supervisor stops all its children and fails upwards."""


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
    """What to do now that child `failed` has ended for `reason`. `counted=False`: a restart that back-off slows down."""
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
    """Whether a child of this kind is restarted after this exit."""
    match kind:
        case "permanent":
            return True
        case "transient":
            return reason.abnormal
        case "temporary":
            return False


def delay_before(backoff: tuple[float, float] | None, failures: int) -> float:
    """How long the next restart waits, after so many failures in a row before this one."""
    if backoff is None:
        return 0.0
    first, maximum = backoff
    # The exponent is bounded so that a server that is down for a year does not overflow a float.
    return min(maximum, first * 2.0 ** min(failures, 64))


def _stopped(strategy: Strategy, count: int, failed: int) -> tuple[int, ...]:
    """The siblings that go down with the failed child, in reverse order of start."""
    match strategy:
        case "one_for_one":
            return ()
        case "one_for_all":
            return tuple(sibling for sibling in reversed(range(count)) if sibling != failed)
        case "rest_for_one":
            return tuple(reversed(range(failed + 1, count)))
