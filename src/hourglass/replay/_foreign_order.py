"""In which order a run is told what happened at once, and the search for the one that another SDK had. Pure.

Must not know: what is told, or compared. What happened between two workflow tasks is told in one; whether a signal's
handler runs before the body, and which of two timers that fired in the same task wins, differs from SDK to SDK. So a
history is replayed in its own order first. Where that does not fit, the last task with a choice, up to the one that
did not fit, is told in another, and so on, a bounded number of times.

`ShortSleeps`: for `workflow.sleep(0)` TypeScript's and .NET's SDKs start a timer of a millisecond. Python's gives way for a
turn and starts none, and so does Hourglass. Where a history of such an SDK has timers of a millisecond, a sleep of
nothing is replayed as one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hourglass._embedded.workers.cursor import rank
from hourglass._engine import events as e
from hourglass._engine.behaviour import Flag
from hourglass._engine.interception import (
    SleepInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)

# --- sleeps of nothing ----------------------------------------------------------------------------


_NAP = 0.001
_NAP_NS = 1_000_000


def has_naps(recorded: Iterable[Any]) -> bool:
    """Whether what a history says that was asked for has timers of a millisecond."""
    return any(item.duration_ns == _NAP_NS for item in recorded)


class ShortSleeps(WorkflowInboundInterceptor):
    """Stands next to a run's code, and lets sleeps of nothing take a millisecond."""

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """The run begins."""
        self.next.init(_Naps(outbound))


class _Naps(WorkflowOutboundInterceptor):
    def sleep(self, input: SleepInput) -> None:
        if input.duration == 0:
            input.duration = _NAP
        self.next.sleep(input)


# --- orders ---------------------------------------------------------------------------------------


_WAYS = 6
"""All at once; messages first; one by one; one by one, the last first; all at once and one by one with the timers at the end,
the last of them first."""
_FEW = 4  # of them there are where there are no timers to set apart
_TRIES = 48
_EVENTS = 50_000  # about so many are told in all tries together
_FIRST = 3  # the rank of messages: what is below comes before all else


class Order(msgspec.Struct, frozen=True):
    """The ways in which tasks are told, by their place; all that are not named in the first."""

    ways: Mapping[int, int] = {}
    """How a task is told; beyond the ways to tell it, the same once more, with its commands paired up in another order."""
    late_updates: bool = False
    """Whether updates wait for handlers that the body registers."""
    eager: bool = False
    """Whether commands are first paired up as if spawned functions began at once."""

    def choices(self, due: Sequence[e.AnyEvent]) -> int:
        """How many ways there are to tell a run these."""
        if len([event for event in due if rank(event) > 1]) < 2 and not _meets_start(due):
            return 1
        return _WAYS if len(_timers(due)) > 1 else _FEW

    def of(self, place: int, due: list[e.AnyEvent]) -> tuple[tuple[int, ...], list[list[e.AnyEvent]]]:
        """The flags, and the batches, in which a task is told."""
        way = self.ways.get(place, 0) % self.choices(due)
        flags = (
            *((Flag.SINGLE_BATCH,) if way != 1 else ()),
            *((Flag.HOURGLASS,) if self.late_updates else ()),
        )
        if way > 3:
            due = [*_others(due), *reversed(_timers(due))]
        if way in (0, 1, 4):
            return flags, [due] if due else []
        first = [event for event in due if rank(event) < _FIRST]
        rest = [[event] for event in due if rank(event) >= _FIRST]
        ordered = rest[::-1] if way == 3 else rest
        return flags, [first, *ordered] if first else ordered

    def pairing_of(self, place: int, choices: int) -> int:
        """The order in which the commands of a task are paired up, where there are so many ways to tell it."""
        pairing = self.ways.get(place, 0) // choices
        return 1 - pairing if self.eager and pairing < 2 else pairing


def _timers(due: Sequence[e.AnyEvent]) -> list[e.AnyEvent]:
    return [event for event in due if isinstance(event, e.TimerFired)]


def _others(due: Sequence[e.AnyEvent]) -> list[e.AnyEvent]:
    return [event for event in due if not isinstance(event, e.TimerFired)]


def _meets_start(due: Sequence[e.AnyEvent]) -> bool:
    return len(due) > 1 and isinstance(due[0], e.RunStarted)


class TurnSearch:
    """Orders to try, one after another; after each that did not fit it is to be `missed`."""

    def __init__(self, events: int, *, has_updates: bool, eager: bool = False) -> None:
        self._tries = max(3, min(_TRIES, _EVENTS // max(events, 1)))
        self._late_updates = (False, True) if has_updates else (False,)
        self._ways: dict[int, int] = {}
        self._again = True
        self._eager = eager

    def missed(self, at: int, choices: Sequence[int]) -> None:
        """The order did not fit: seen in the task at this place, of tasks with so many choices."""
        for place in range(min(at, len(choices) - 1), -1, -1):
            way = self._ways.get(place, 0) + 1
            if way < choices[place]:
                self._ways[place] = way
                return
            self._ways.pop(place, None)
        self._again = False

    def orders(self) -> Iterator[Order]:
        """The orders, fewer for a long history."""
        for late_updates in self._late_updates:
            self._ways, self._again = {}, True
            for _ in range(self._tries):
                if not self._again:
                    break
                yield Order(dict(self._ways), late_updates, self._eager)
