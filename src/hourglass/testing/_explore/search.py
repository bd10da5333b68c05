"""The selection of the event orders to explore: first all orders with few deviations from the default order, then random
orders; and the search for the smallest order that still fails.

Pure, except for random numbers determined by the seed. An order is a list of choices; after the last one the default choices
apply. Each explored order yields all orders with one more deviation, placed after its last one. Every order is therefore
reached in exactly one way. When none is left, all have been explored.

Shrinking: delta debugging removes deviations of a failing order, then each remaining deviation is made as small and as
early as possible. Of two orders the smaller is the one with fewer deviations, then with fewer choices, then with smaller
choices. A function that is passed as an argument runs the orders.

Invariants:

- While the pending orders are within their limit, an order is explored before any order with more deviations, so that a
  failing order is small.
- The order that shrinking returns was run, and it failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from hourglass.testing._explore.choices import Choices, Swarm

Script: TypeAlias = tuple[int, ...]
Fails: TypeAlias = Callable[[Script], Sequence[int] | None]
"""Runs an order. Returns its choices if it fails like the original order, otherwise None."""

# The maximum number of places by which a deviation may be moved to a later choice. The workflow then receives earlier events
# together, in fewer steps.
_LATER = 3


def size(choices: Sequence[int]) -> tuple[int, int, Script]:
    """Return a sort key. A smaller key means a smaller order."""
    return sum(1 for choice in choices if choice), len(choices), tuple(choices)


def singles(widths: Sequence[int]) -> Iterator[Script]:
    """Yield all orders with a single deviation. `widths` are the numbers of options at the choices of the default order."""
    for place, width in enumerate(widths):
        for choice in range(1, width):
            yield (*[0] * place, choice)


def shrink(choices: Sequence[int], fails: Fails, usual: Sequence[int] = (), most: int = 400) -> Script:
    """Return the smallest failing order found within `most` runs, without the default choices at its end.

    `usual` are the widths of the default order. All orders with a single deviation are tried first, because none is smaller.
    """
    best = tuple(choices)
    tried: set[Script] = {()}
    for script in itertools.islice(singles(usual), most):
        tried.add(script)
        again = fails(script)
        if again is not None:
            best = min(best, tuple(again), key=size)
    runs = 0
    improved = True
    while improved:
        improved = False
        for script in _smaller(best):
            if script in tried:
                continue
            if runs >= most:
                return stripped(best)
            tried.add(script)
            runs += 1
            again = fails(script)
            if again is not None and size(again) < size(best):
                best = tuple(again)
                improved = True
                break
    return stripped(best)


def stripped(script: Sequence[int]) -> Script:
    """Return the script without the default choices at its end."""
    end = len(script)
    while end and not script[end - 1]:
        end -= 1
    return tuple(script[:end])


def _smaller(best: Script) -> Iterator[Script]:
    """Yield orders that may be smaller, starting with the largest differences."""
    places = [place for place, choice in enumerate(best) if choice]
    chunk = len(places)
    while chunk:
        for begin in range(0, len(places), chunk):
            yield from _without(best, places[begin : begin + chunk])
        chunk //= 2
    for place in reversed(places):
        for choice in range(1, best[place]):
            yield stripped((*best[:place], choice, *best[place + 1 :]))
    for place in places:
        for target in (*range(place), *range(place + 1, place + 1 + _LATER)):
            yield from _moved(best, place, target)


def _moved(best: Script, place: int, target: int) -> Iterator[Script]:
    """Yield the order with a deviation moved to another place, where the index of the option may differ by one."""
    moved = list(best) + [0] * (target + 1 - len(best))
    if moved[target]:
        return
    moved[place] = 0
    for choice in (best[place], best[place] - 1, best[place] + 1):
        if choice > 0:
            moved[target] = choice
            yield stripped(moved)


def _without(best: Script, places: Sequence[int]) -> Iterator[Script]:
    """Yield the order without these deviations: once with default choices in their place, once with the choices removed."""
    removed = frozenset(places)
    yield stripped([0 if place in removed else choice for place, choice in enumerate(best)])
    yield stripped([choice for place, choice in enumerate(best) if place not in removed])


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
