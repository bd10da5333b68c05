"""Transactions over several runs (`Transaction`): their changes become durable together.

Must not know: queues, handles, the store, how effects are carried out. Invariants:

- All changes of a transaction are in memory before any of them is announced.
- Effects on other runs are carried out in the order in which they were requested. Effects that result from other
  effects follow all effects that were requested before them.
- Changes in memory are handed to the store even if carrying out an effect raises an exception.
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
    """A change of one run in memory. If `unsaved` is None, the change is announced but not stored."""

    record: LoadedRun
    unsaved: RunChange | None
    ids: Collection[int]
    earliest: int


class Transaction:
    """A transaction over several runs. It collects all changes from the outermost `begin` to the end of that context,
    and then passes them to `settle`.
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
        """Whether the transaction is open, so that changes applied now become part of it."""

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
                # Memory has changed even if an exception was raised. The store must receive every change, or
                # memory and the store would differ.
                self.is_open = False
                changes, self._changes = self._changes, []
                self._settle(changes, now_ns)
