"""The steps of an environment, and choosers of the next one.

At any instant an environment knows the steps that are possible. One is chosen and done, then the possible steps are determined
again; virtual time passes when there is none. The same choices lead to the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

StepKind = Literal["activation", "attempt", "cancel", "ended", "woke", "action"]


class Step(msgspec.Struct, frozen=True, eq=False):
    """A step that can be done now.

    activation: a workflow receives events. attempt: an attempt of an activity starts. cancel: an attempt is cancelled. ended: the
    engine receives the result of an attempt that ran on another thread. woke: the virtual duration of a fake is over. action: an
    action that the test has scheduled for this time.
    """

    kind: StepKind
    name: str
    do: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Chooser(Protocol):
    """Chooses the next step."""

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the index of the next step; there is at least one."""
        ...


class InOrder:
    """Chooses the oldest step."""

    def choose(self, steps: Sequence[Step]) -> int:
        """Return 0."""
        return 0


class Shuffled:
    """Chooses at random, in the same order for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, steps: Sequence[Step]) -> int:
        """Return a random index."""
        return self._random.randrange(len(steps))


class StepAdder(Protocol):
    """The driver, as task queues and runners see it."""

    def add(self, step: Step) -> None:
        """Add a step that is possible from now on."""
        ...
