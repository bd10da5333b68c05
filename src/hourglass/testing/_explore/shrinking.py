"""Shrinking: the search for the smallest order that still fails. Pure: a function that is passed as an argument runs the
orders.

Delta debugging removes deviations, then each remaining deviation is made as small and as early as possible. Of two orders
the smaller is the one with fewer deviations, then with fewer choices, then with smaller choices.

Invariant: the resulting order was run, and it failed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

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
