"""The choices of an order: first the choices of a script, then random or default choices. All choices are recorded. Pure.

Invariants:

- If there is only one option, there is no choice to record.
- If a script selects an option that does not exist, because the code has changed, the default option is chosen.
- The same script and the same seed result in the same choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from hourglass.testing._explore.options import SORT_OF, SORTS, Options, Sort


class Chance(Protocol):
    """Makes the choices that a script leaves open."""

    def choose(self, options: Options) -> int:
        """Return the index of the chosen option."""
        ...


class Choices:
    """The choices of an order. `taken` and `widths` record each choice and its number of options. `scripted` is the length
    of the script.
    """

    def __init__(self, script: Sequence[int] = (), chance: Chance | None = None) -> None:
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.scripted = len(script)
        self._script = script
        self._chance = chance

    def choose(self, options: Options) -> int:
        """Return the index of the next option, and record it."""
        width = len(options)
        if width == 1:
            return 0
        position = len(self.taken)
        if position < len(self._script):
            chosen = self._script[position]
            if chosen >= width:
                chosen = 0
        elif self._chance is not None:
            chosen = self._chance.choose(options)
        else:
            chosen = 0
        self.taken.append(chosen)
        self.widths.append(width)
        return chosen


@dataclass
class Swarm:
    """Random deviations: of a few sorts, at a low rate, and at most `left` of them.

    A few sorts at a time find more bugs than all sorts together: a crash in every order would hide bugs that do not need a
    crash. Only `Random.random` is used, because it returns the same numbers on every machine and Python version.
    """

    random: Random
    sorts: frozenset[Sort]
    rate: float
    left: int

    @classmethod
    def drawn(cls, random: Random, points: int) -> Swarm:
        """Return a random selection of sorts for orders of about `points` choices."""
        drawn: list[Sort] = [sort for sort in SORTS if random.random() < 0.6]
        sorts: frozenset[Sort] = frozenset(drawn or SORTS)
        most = 2 + int(random.random() * 5)
        return cls(random, sorts, min(0.6, 2 * most / max(points, 1)), most)

    def choose(self, options: Options) -> int:
        """Return 0, the default option, or at a low rate the index of a deviation."""
        if not self.left or self.random.random() >= self.rate:
            return 0
        deviations = [place for place in range(1, len(options)) if SORT_OF[options[place].kind] in self.sorts]
        if not deviations:
            return 0
        self.left -= 1
        return deviations[int(self.random.random() * len(deviations))]
