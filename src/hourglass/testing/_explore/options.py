"""Steps that can happen next in an exploration, and their sorts. Pure.

Event ids are the engine's: the event that scheduled an activity; 0 for a workflow task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from hourglass.testing._fakes import Raisable

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
