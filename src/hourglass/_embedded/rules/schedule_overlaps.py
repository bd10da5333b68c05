"""Which of the starts that wait go now, which wait on, and which are skipped: the overlap policies. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from hourglass._contract.schedules import OverlapPolicy

MOST_WAITING = 1000
"""So many starts may wait; what comes on top is dropped, and counted."""

Running: TypeAlias = tuple[str, str]
"""A workflow that a schedule started and waits for: its id and first run id."""


class Due(msgspec.Struct, frozen=True, array_like=True):
    """A start that is due: the time it stands for, the same with jitter, and what was asked for by hand with it."""

    nominal_ns: int
    due_ns: int
    overlap: OverlapPolicy = OverlapPolicy.UNSPECIFIED
    manual: bool = False


class Sorted(NamedTuple):
    """What to do: start some together, start one alone, let others wait, end what runs."""

    together: tuple[Due, ...] = ()
    alone: Due | None = None
    waiting: tuple[Due, ...] = ()
    skipped: int = 0
    cancel: bool = False
    terminate: bool = False


def sort_out(waiting: Sequence[Due], running: bool, default: OverlapPolicy) -> Sorted:
    """Decide about each start in its turn, by its own policy or the schedule's."""
    found = Sorted()
    for due in waiting:
        policy = due.overlap or default or OverlapPolicy.SKIP
        if policy is OverlapPolicy.ALLOW_ALL:
            found = found._replace(together=(*found.together, due))
        elif not running and found.alone is None:
            found = found._replace(alone=due)
        else:
            found = _overlapping(found, due, policy, running)
    if found.cancel or found.terminate:
        # They would be ended at once: whoever ends what runs means these too.
        found = found._replace(together=())
    return found


def _overlapping(found: Sorted, due: Due, policy: OverlapPolicy, running: bool) -> Sorted:
    waits = found._replace(waiting=(*found.waiting, due))
    match policy:
        case OverlapPolicy.BUFFER_ONE if not found.waiting:
            return waits
        case OverlapPolicy.BUFFER_ALL:
            return waits
        case OverlapPolicy.CANCEL_OTHER | OverlapPolicy.TERMINATE_OTHER if not running:
            return found._replace(alone=due)  # the other one was only about to start
        case OverlapPolicy.CANCEL_OTHER:
            return waits._replace(cancel=True)
        case OverlapPolicy.TERMINATE_OTHER:
            return waits._replace(terminate=True)
        case _:
            return found._replace(skipped=found.skipped + 1)
