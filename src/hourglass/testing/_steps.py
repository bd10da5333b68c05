"""The steps of an environment, and choosers that select the next step.

At any instant an environment knows the possible steps. The chooser selects one, the environment does it, and the possible
steps are determined again. Virtual time passes when no step is possible. The same choices result in the same order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

StepKind = Literal["activation", "attempt", "cancel", "ended", "woke", "action"]


class Step(msgspec.Struct, frozen=True, eq=False):
    """A step that can be done now. `kind` is one of:

    - activation: a workflow receives events
    - attempt: an attempt of an activity starts
    - cancel: an attempt is cancelled
    - ended: the engine receives the result of an attempt that ran on another thread
    - woke: the virtual duration of a fake is over
    - action: an action that the test scheduled for this time
    """

    kind: StepKind
    name: str
    do: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Chooser(Protocol):
    """Chooses the next step."""

    def choose(self, steps: Sequence[Step]) -> int:
        """Return the index of the next step. There is at least one step."""
        ...


class InOrder:
    """Chooses the oldest step."""

    def choose(self, steps: Sequence[Step]) -> int:
        """Return 0."""
        return 0


class Shuffled:
    """Chooses randomly. The same seed results in the same order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, steps: Sequence[Step]) -> int:
        """Return a random index."""
        return self._random.randrange(len(steps))
