"""The selection of the orders to try: all with few deviations from the usual one, then others at random.

Pure except for the random numbers, which the seed determines. An order is a list of choices; after its last choice it continues
as usual. Each order that was tried yields the orders with one more deviation, later than its last one. So every order is reached
in exactly one way, and when none is left all were tried.

Invariant: while there is room, an order is tried before any order with more deviations, so that a failing order is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hourglass.testing._explore.choices import Choices, Swarm

# The part of all orders that is tried systematically; the rest, by chance, reaches deeper.
_SYSTEMATIC = 0.75
_MOST_KEPT = 200_000


@dataclass(frozen=True)
class _Branch:
    """An order that leaves another one at a place."""

    base: Sequence[int]
    place: int
    choice: int

    def script(self) -> tuple[int, ...]:
        return (*self.base[: self.place], self.choice)


class OrderSearch:
    """Gives one order after another, and is told what became of each."""

    def __init__(self, runs: int, seed: int) -> None:
        self._random = Random(seed)
        self._left = runs
        self._systematic = max(1, int(runs * _SYSTEMATIC))
        self._level: list[_Branch] = []
        self._next: list[_Branch] = []
        self._deviations = 0
        self._points = 0
        self._first = True
        self._truncated = False
        self._is_systematic = True
        self.usual: tuple[int, ...] = ()
        """Among how many the usual order, which is tried first, chooses at each place."""

    @property
    def is_complete(self) -> bool:
        """Whether every order was tried."""
        return not (self._first or self._level or self._next or self._truncated)

    @property
    def deviations(self) -> int:
        """All orders with fewer deviations than this were tried."""
        return self._deviations

    def next(self) -> Choices | None:
        """The choices of the next order; None at the end."""
        if self._left <= 0 or self.is_complete:
            return None
        self._left -= 1
        if self._first:
            self._first = False
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
        """What an order came to."""
        if not self.usual:
            self.usual = tuple(choices.widths)
        self._points = max(self._points, len(choices.taken))
        if not self._is_systematic:
            return
        for place in range(choices.scripted, len(choices.taken)):
            for choice in range(1, choices.widths[place]):
                if len(self._next) >= _MOST_KEPT:
                    self._truncated = True
                    return
                self._next.append(_Branch(choices.taken, place, choice))

    def _draw(self) -> _Branch:
        """Any of this level: if there is no room for all of them, they shall not all be early ones."""
        level = self._level
        drawn = int(self._random.random() * len(level))
        level[drawn], level[-1] = level[-1], level[drawn]
        return level.pop()
