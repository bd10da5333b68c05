"""What can happen next in an exploration, the choices of one order, and an order as a short text. Pure.

The first option of a list is what usually happens; every other one is a deviation. Ids of events are the engine's:
the event that scheduled an activity, 0 for a workflow's task.

A token is an order as text: `4.2-9.1` means the third option at the fifth choice, the second at the tenth. Only
deviations are named, so that a token is as short as its story.

Choices are taken from a script, then by chance or as usual, and written down. Invariants: a choice among one is none,
and is not written down; where a script names what is not there (the code has changed) what is usual is taken; the
same script and the same chance give the same choices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, Protocol, TypeAlias

from hourglass.errors import UsageError
from hourglass.testing._fakes import Raisable

# --- options --------------------------------------------------------------------------------------


Kind: TypeAlias = Literal[
    "task",  # a workflow gets to know what happened
    "attempt",  # an attempt of an activity begins, and goes well
    "step",  # something else that is ready: the end of a fake's duration, a late answer
    "arrival",  # something comes from outside
    "time",  # time passes until something is due
    "due",  # one of several things that are due at the same instant
    "fail",  # an attempt fails
    "silent",  # an attempt does nothing and never answers
    "unheard",  # an attempt does its work, and its answer is lost
    "crash",  # the worker dies and comes back, before a workflow gets to know what happened
    "die",  # the same after the workflow has gone on, and before the engine knows that
    "late",  # a workflow's answer comes after the task has timed out: it is delivered again
]

Sort: TypeAlias = Literal["order", "time", "failures", "timeouts", "redeliveries", "crashes"]

SORT_OF: dict[Kind, Sort] = {
    "task": "order",
    "attempt": "order",
    "step": "order",
    "arrival": "order",
    "due": "order",
    "time": "time",
    "fail": "failures",
    "silent": "timeouts",
    "unheard": "redeliveries",
    "late": "redeliveries",
    "crash": "crashes",
    "die": "crashes",
}

SORTS: tuple[Sort, ...] = ("order", "time", "failures", "timeouts", "redeliveries", "crashes")


class Option(NamedTuple):
    """Something that can happen next."""

    kind: Kind
    run_id: str = ""
    event_id: int = 0
    place: int = 0
    error: Raisable | None = None


Options: TypeAlias = Sequence[Option]


def chosen_sorts(*, crashes: bool, failures: bool, timeouts: bool, redeliveries: bool) -> frozenset[Sort]:
    """The sorts of deviations that are wanted; order and time always are."""
    wanted: dict[Sort, bool] = {
        "crashes": crashes,
        "failures": failures,
        "timeouts": timeouts,
        "redeliveries": redeliveries,
    }
    return frozenset(sort for sort in SORTS if wanted.get(sort))


# --- tokens ---------------------------------------------------------------------------------------


_TOKEN = re.compile(r"\d{1,6}\.\d{1,6}(-\d{1,6}\.\d{1,6})*")
USUAL = "usual"


def token_of(script: Sequence[int]) -> str:
    """The token of an order."""
    named = [f"{place}.{choice}" for place, choice in enumerate(script) if choice]
    return "-".join(named) or USUAL


def script_of(token: str) -> tuple[int, ...]:
    """The order that a token names."""
    if token == USUAL:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise UsageError(f"story= is what a failed exploration printed, such as '4.2-9.1', not {token!r:.80}")
    script: list[int] = []
    for each in token.split("-"):
        place, choice = map(int, each.split("."))
        if place < len(script):
            raise UsageError(f"story={token!r}: its places must ascend")
        script += [0] * (place - len(script)) + [choice]
    return tuple(script)


# --- choices --------------------------------------------------------------------------------------


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
