"""Shrinking: the smallest order that still fails. Pure: a function argument runs the orders.

Delta debugging over the deviations, then each deviation as small and as early as possible. Of two orders the one with fewer
deviations is smaller, then the one with fewer choices, then the one with the smaller choices.

Invariant: the result was run, and failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

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
