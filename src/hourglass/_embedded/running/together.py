"""Steps of several runs that become durable as one change: a step, the run that it leads to, and all that it asks
of other runs.

Must not know: how runs change, how a store remembers. It gathers the parts while they happen and hands them over
when all that was asked for is done. Invariants: what was asked first is done first, and what that leads to comes
after all that was asked before, however deep it goes; what has happened is handed over even if somebody raises.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from hourglass._embedded.rules.run import Ask
from hourglass._embedded.running.record import Record
from hourglass._embedded.store.store import Change, ScheduleChange


class Part(NamedTuple):
    """One run's part; without a change there is only somebody to tell."""

    record: Record
    change: Change | None
    ids: Collection[int]
    earliest: int


class Together:
    """Gathers parts from the outermost `whole` to its end."""

    def __init__(
        self, carry_out: Callable[[Record, Ask], None], settle: Callable[[list[Part], int], None]
    ) -> None:
        self._carry_out = carry_out
        self._settle = settle
        self._parts: list[Part] = []
        self._asked: deque[tuple[Record, Ask]] = deque()
        self.gathers = False
        """Whether somebody is inside `whole`: what happens now is a part of it."""

    def add(self, part: Part) -> None:
        """One more part."""
        self._parts.append(part)

    def ask(self, record: Record, asks: Iterable[Ask]) -> None:
        """A run asks something of others."""
        self._asked.extend((record, ask) for ask in asks)

    @contextlib.contextmanager
    def whole(self, now_ns: int) -> Iterator[None]:
        """What happens in here, and all that it asks of other runs, is one whole."""
        if self.gathers:
            yield
            return
        self.gathers = True
        try:
            yield
        finally:
            try:
                while self._asked:
                    self._carry_out(*self._asked.popleft())
            finally:
                self.gathers = False
                parts, self._parts = self._parts, []
                self._settle(parts, now_ns)


def as_one(changes: Iterable[Change | ScheduleChange]) -> Change | ScheduleChange:
    """Changes as one that has all the others with it."""
    first, *others = changes
    return msgspec.structs.replace(first, also=tuple(others))
