"""Transactions over several runs (`Transaction`): their changes become durable together.

Must not know: queues, handles, the store, how effects are carried out. Invariants: all changes of a transaction are in
memory before any of them is announced; effects on other runs are carried out in the order of their requests, and
further effects of those come after all that were requested before; changes in memory are handed to the store even if
carrying out an effect raises.
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


class AppliedChange(NamedTuple):
    """A change of one run in memory. Without `unsaved` it is announced but not stored."""

    record: LoadedRun
    unsaved: RunChange | None
    ids: Collection[int]
    earliest: int


class Transaction:
    """A transaction over several runs. It gathers the changes from the outermost `begin` to its end, then passes them to
    `settle`.
    """

    def __init__(
        self,
        carry_out: Callable[[LoadedRun, Effect], None],
        settle: Callable[[list[AppliedChange], int], None],
    ) -> None:
        self._carry_out = carry_out
        self._settle = settle
        self._changes: list[AppliedChange] = []
        self._effects: deque[tuple[LoadedRun, Effect]] = deque()
        self.is_open = False
        """Whether the transaction has begun: changes that are applied now are part of it."""

    def add(self, change: AppliedChange) -> None:
        """Add a change."""
        self._changes.append(change)

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
                changes, self._changes = self._changes, []
                self._settle(changes, now_ns)
