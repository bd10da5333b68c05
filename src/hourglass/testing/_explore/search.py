"""The selection of the event orders to explore: first all orders with few deviations from the default order, then random
orders.

Pure, except for random numbers determined by the seed. An order is a list of choices; after the last one the default choices
apply. Each explored order yields all orders with one more deviation, placed after its last one. Every order is therefore
reached in exactly one way. When none is left, all have been explored.

Invariant: while the pending orders are within their limit, an order is explored before any order with more deviations, so
that a failing order is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hourglass.testing._explore.choices import Choices, Swarm

# The fraction of the orders that are explored systematically. The remaining orders are random and have more deviations.
_SYSTEMATIC = 0.75
_MOST_PENDING = 200_000


@dataclass(frozen=True)
class _Branch:
    """An order that deviates from `base` at this place, and ends there."""

    base: Sequence[int]
    place: int
    choice: int

    def script(self) -> tuple[int, ...]:
        return (*self.base[: self.place], self.choice)


class OrderSearch:
    """The orders to explore, one after another. `tried` must be called after each order."""

    def __init__(self, runs: int, seed: int) -> None:
        self._random = Random(seed)
        self._left = runs
        self._systematic = max(1, int(runs * _SYSTEMATIC))
        self._level: list[_Branch] = []
        self._next: list[_Branch] = []
        self._deviations = 0
        self._points = 0
        self._is_first = True
        self._truncated = False
        self._is_systematic = True
        self.usual: tuple[int, ...] = ()
        """The number of options at each choice of the default order, which is explored first."""

    @property
    def is_complete(self) -> bool:
        """Whether every possible order has been explored."""
        return not (self._is_first or self._level or self._next or self._truncated)

    @property
    def deviations(self) -> int:
        """The number of deviations below which all orders have been explored."""
        return self._deviations

    def next(self) -> Choices | None:
        """Return the choices of the next order, or None after the last one."""
        if self._left <= 0 or self.is_complete:
            return None
        self._left -= 1
        if self._is_first:
            self._is_first = False
            return Choices()
        if not self._level:
            self._level, self._next = self._next, []
            self._deviations += 1
        self._is_systematic = self._systematic > 0 and bool(self._level)
        if self._is_systematic:
            self._systematic -= 1
            return Choices(self._draw().script())
        return Choices(chance=Swarm.drawn(self._random, self._points))

    def tried(self, choices: Choices) -> None:
        """Add the orders that have one more deviation than this order. Must be called after the order was run."""
        if not self.usual:
            self.usual = tuple(choices.widths)
        self._points = max(self._points, len(choices.taken))
        if not self._is_systematic:
            return
        for place in range(choices.scripted, len(choices.taken)):
            for choice in range(1, choices.widths[place]):
                if len(self._next) >= _MOST_PENDING:
                    self._truncated = True
                    return
                self._next.append(_Branch(choices.taken, place, choice))

    def _draw(self) -> _Branch:
        """Remove and return a random branch of this level, so that late deviations are explored even if there is no time for
        all branches.
        """
        level = self._level
        drawn = int(self._random.random() * len(level))
        level[drawn], level[-1] = level[-1], level[drawn]
        return level.pop()
