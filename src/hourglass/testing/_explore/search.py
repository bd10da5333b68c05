"""Which orders are tried, and the smallest one that still fails.

First come the orders with few deviations from what is usual, all of them if there is room, then others by chance.
Pure but for its random numbers, which its seed decides. An order is a list of choices; one that ends early goes on as
usual. Each order that was tried says where it could have gone otherwise: with one deviation more, later than its last
one. So every order is reached on exactly one way, and when nothing is left all orders were tried.

Shrinking is delta debugging over the deviations, then each as small and as early as it can be. It is pure: the
function that it is given runs the orders. An order is smaller that has fewer deviations, then one that takes fewer
choices, then the one with the smaller choices.

Invariants:

- While there is room, an order is tried before any with more deviations; so what is found is small.
- What shrinking gives was run, and failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from hourglass.testing._explore.choices import Choices, Swarm

# --- shrinking ------------------------------------------------------------------------------------


Script: TypeAlias = tuple[int, ...]
Fails: TypeAlias = Callable[[Script], Sequence[int] | None]
"""Runs an order; gives the choices that it took if it fails as the first one did, else None."""

# So much later a deviation may come for a story to get shorter: what happens before it is then heard together.
_LATER = 3


def size(taken: Sequence[int]) -> tuple[int, int, Script]:
    """How large an order is."""
    return sum(1 for choice in taken if choice), len(taken), tuple(taken)


def singles(widths: Sequence[int]) -> Iterator[Script]:
    """All orders with one deviation, where the usual one chooses among so many at each place."""
    for place, width in enumerate(widths):
        for choice in range(1, width):
            yield (*[0] * place, choice)


def shrink(taken: Sequence[int], fails: Fails, usual: Sequence[int] = (), most: int = 400) -> Script:
    """The smallest order that was found within so many runs, without the usual choices at its end.

    `usual` are the widths of the usual order. All orders with one deviation are tried first: none is smaller.
    """
    best = tuple(taken)
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
    """Without the usual choices at the end, which need not be said."""
    end = len(script)
    while end and not script[end - 1]:
        end -= 1
    return tuple(script[:end])


def _smaller(best: Script) -> Iterator[Script]:
    """Orders that may be smaller, the boldest first."""
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
        for other in (*range(place), *range(place + 1, place + 1 + _LATER)):
            yield from _moved(best, place, other)


def _moved(best: Script, place: int, other: int) -> Iterator[Script]:
    """With a deviation at another place, where what it means may have another number."""
    moved = list(best) + [0] * (other + 1 - len(best))
    if moved[other]:
        return
    moved[place] = 0
    for choice in (best[place], best[place] - 1, best[place] + 1):
        if choice > 0:
            moved[other] = choice
            yield stripped(moved)


def _without(best: Script, places: Sequence[int]) -> Iterator[Script]:
    """Without these deviations: the usual thing there, or no choice there at all."""
    gone = frozenset(places)
    yield stripped([0 if place in gone else choice for place, choice in enumerate(best)])
    yield stripped([choice for place, choice in enumerate(best) if place not in gone])


# --- searching ------------------------------------------------------------------------------------


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
