"""The steps that can happen next in an exploration, and their sorts. Pure.

Event ids are the engine's: the id of the event that scheduled an activity; 0 for a workflow task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

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
