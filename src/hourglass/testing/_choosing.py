"""What happens next, where several things can: the seam through which the order of a test can be chosen.

At any instant an environment knows the steps that are possible. One is chosen, done, and the possible ones are
looked at again; time moves when there is none. The same choices give the same story.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

StepKind = Literal["activation", "attempt", "cancel", "ended", "woke", "action"]


class Step(msgspec.Struct, frozen=True, eq=False):
    """Something that can happen now.

    activation: a workflow gets to know what happened. attempt: an attempt of an activity begins. cancel: one is
    told to stop. ended: one that ran elsewhere is done. woke: the virtual duration of a fake is over. action:
    something that the test put down for this time.
    """

    kind: StepKind
    name: str
    do: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Chooser(Protocol):
    """Decides what happens next."""

    def choose(self, steps: Sequence[Step]) -> int:
        """The place of the step that is done next; there is at least one."""
        ...


class InOrder:
    """What came first happens first."""

    def choose(self, steps: Sequence[Step]) -> int:
        """The first."""
        return 0


class Shuffled:
    """Any order, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, steps: Sequence[Step]) -> int:
        """One of them."""
        return self._random.randrange(len(steps))
