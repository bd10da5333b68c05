"""The options of a choice, the choices of an order, and an order as a short string. Pure.

An order takes first the choices of a script, then random or default choices. All choices are recorded. The token `4.2-9.1`
means the third option at the fifth choice, and the second at the tenth. Only deviations are listed. Event ids are the
engine's: the id of the event that scheduled an activity; 0 for a workflow task.

Invariants:

- If there is only one option, there is no choice to record.
- If a script selects an option that does not exist, because the code has changed, the default option is chosen.
- The same script and the same seed result in the same choices.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from hourglass.errors import UsageError
from hourglass.testing._fakes import Raisable

Kind: TypeAlias = Literal[
    "task",  # a workflow receives new events
    "attempt",  # an attempt of an activity executes
    "step",  # another step that is ready: the end of a fake's duration, or a late completion
    "arrival",  # a message or call from outside
    "time",  # virtual time passes until a timer or timeout is due
    "due",  # one of several timers and timeouts that are due at the same instant
    "fail",  # an attempt fails
    "silent",  # an attempt never executes and has no result
    "unheard",  # an attempt executes, but its result is lost
    "crash",  # the worker crashes and is restarted before a workflow receives new events
    "die",  # the worker crashes after it has evaluated a workflow task, but before it completes the task
    "late",  # a completion arrives after its workflow task has timed out
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
    """A step that can happen next."""

    kind: Kind
    run_id: str = ""
    event_id: int = 0
    place: int = 0
    error: Raisable | None = None


Options: TypeAlias = Sequence[Option]


def chosen_sorts(*, crashes: bool, failures: bool, timeouts: bool, redeliveries: bool) -> frozenset[Sort]:
    """Return the sorts of faults that are enabled. Deviations in order and time are always possible."""
    enabled: dict[Sort, bool] = {
        "crashes": crashes,
        "failures": failures,
        "timeouts": timeouts,
        "redeliveries": redeliveries,
    }
    return frozenset(sort for sort in SORTS if enabled.get(sort))


class Choices:
    """The choices of an order. `taken` and `widths` record each choice and its number of options. `scripted` is the length
    of the script.
    """

    def __init__(self, script: Sequence[int] = (), chance: Swarm | None = None) -> None:
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


_TOKEN = re.compile(r"\d{1,6}\.\d{1,6}(-\d{1,6}\.\d{1,6})*")
USUAL = "usual"


def token_of(script: Sequence[int]) -> str:
    """Return the token for an order."""
    named = [f"{place}.{choice}" for place, choice in enumerate(script) if choice]
    return "-".join(named) or USUAL


def script_of(token: str) -> tuple[int, ...]:
    """Return the order for a token. Raise `UsageError` if the token is not valid."""
    if token == USUAL:
        return ()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise UsageError(
            f"story= must be a token from the message of a failed exploration, such as '4.2-9.1', not {token!r:.80}"
        )
    script: list[int] = []
    for deviation in token.split("-"):
        place, choice = map(int, deviation.split("."))
        if place < len(script):
            raise UsageError(f"story={token!r}: its positions must increase")
        script += [0] * (place - len(script)) + [choice]
    return tuple(script)
