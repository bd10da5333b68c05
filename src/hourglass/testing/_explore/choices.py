"""The choices of one order: taken from a script, then at random or as usual, and recorded. Pure.

Invariants:

- A choice among one option is none, and is not recorded.
- Where a script names an option that does not exist, because the code has changed, the usual one is chosen.
- The same script and the same seed give the same choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from hourglass.testing._explore.options import SORT_OF, SORTS, Options, Sort


class Chance(Protocol):
    """Decides where no script does."""

    def choose(self, options: Options) -> int:
        """The place of what happens."""
        ...


class Choices:
    """One order, as it is chosen. `taken` and `widths` grow with it; the script is of the length `scripted`."""

    def __init__(self, script: Sequence[int] = (), chance: Chance | None = None) -> None:
        self.taken: list[int] = []
        self.widths: list[int] = []
        self.scripted = len(script)
        self._script = script
        self._chance = chance

    def choose(self, options: Options) -> int:
        """The place of what happens next."""
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
    """Deviations by chance: of a few sorts only, now and then, and not too many.

    Few sorts at a time find more than all of them at once: a crash in every order would hide what comes without one.
    Only `Random.random` is asked, which is the same on every machine and in every version of Python.
    """

    random: Random
    sorts: frozenset[Sort]
    rate: float
    left: int

    @classmethod
    def drawn(cls, random: Random, points: int) -> Swarm:
        """A new mixture, for orders of about so many choices."""
        drawn: list[Sort] = [sort for sort in SORTS if random.random() < 0.6]
        sorts: frozenset[Sort] = frozenset(drawn or SORTS)
        wanted = 2 + int(random.random() * 5)
        return cls(random, sorts, min(0.6, 2 * wanted / max(points, 1)), wanted)

    def choose(self, options: Options) -> int:
        """What is usual, or now and then something else."""
        if not self.left or self.random.random() >= self.rate:
            return 0
        others = [place for place in range(1, len(options)) if SORT_OF[options[place].kind] in self.sorts]
        if not others:
            return 0
        self.left -= 1
        return others[int(self.random.random() * len(others))]
