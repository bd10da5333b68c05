"""Transactions over several runs (`Transaction`): their changes become durable together.

Must not know: queues, handles, the store, how effects are carried out. Invariants: all parts of a transaction are in
memory before any of them is announced; effects on other runs are carried out in the order of their requests, and
further effects of those come after all that were requested before; changes in memory are handed to the store even if a
part raises.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.store.store import RunChange
from hourglass._embedded.transitions.run import (
    Effect,
)


class Part(NamedTuple):
    """One run's part of a transaction. A part without a change is announced but not stored."""

    record: LoadedRun
    change: RunChange | None
    ids: Collection[int]
    earliest: int


class Transaction:
    """A transaction over several runs. It gathers its parts from the outermost `begin` to its end, then passes them to
    `settle`.
    """

    def __init__(
        self, carry_out: Callable[[LoadedRun, Effect], None], settle: Callable[[list[Part], int], None]
    ) -> None:
        self._carry_out = carry_out
        self._settle = settle
        self._parts: list[Part] = []
        self._effects: deque[tuple[LoadedRun, Effect]] = deque()
        self.is_open = False
        """Whether the transaction has begun: changes that are applied now are part of it."""

    def add(self, part: Part) -> None:
        """Add a part."""
        self._parts.append(part)

    def add_effects(self, record: LoadedRun, effects: Iterable[Effect]) -> None:
        """Add effects of a run on other runs."""
        self._effects.extend((record, effect) for effect in effects)

    @contextlib.contextmanager
    def begin(self, now_ns: int) -> Iterator[Transaction]:
        """Return a context in which all changes, and their effects on other runs, become durable together."""
        if self.is_open:
            yield self
            return
        self.is_open = True
        try:
            yield self
        finally:
            try:
                while self._effects:
                    self._carry_out(*self._effects.popleft())
            finally:
                # Even after an exception memory has changed, so the store must get all of it, or the two
                # would differ.
                self.is_open = False
                parts, self._parts = self._parts, []
                self._settle(parts, now_ns)
