"""Priorities: the levels at which tasks and attempts wait on a task queue, and what activities and children inherit from their
workflow. Pure.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from hourglass._embedded.transitions.run import OpenActivity, Run
from hourglass._evaluator.specs import ActivitySpec, StartSpec

LEVELS = (1, 2, 3, 4, 5)
"""The priority keys of a Temporal server: 1 is the most urgent, keys above 5 count as 5."""

_USUAL = 3
"""The level without a priority key."""


S = TypeVar("S", ActivitySpec, StartSpec)


def with_priority_of(own: StartSpec, spec: S) -> S:
    """Return a spec with the priority and fairness of its workflow where it names none."""
    return replace(
        spec,
        priority_key=spec.priority_key or own.priority_key,
        fairness_key=spec.fairness_key or own.fairness_key,
        fairness_weight=spec.fairness_weight or own.fairness_weight,
    )


def key_of(run: Run, activity: OpenActivity) -> int:
    """Return the priority key of an activity, or that of its workflow; 0 if neither has one."""
    return activity.spec.priority_key or run.started.spec.priority_key


def level_of(run: Run, activity: OpenActivity | None = None) -> int:
    """Return the level at which a run's task waits, or an attempt of one of its activities."""
    key = run.started.spec.priority_key if activity is None else key_of(run, activity)
    return min(key, LEVELS[-1]) if key > 0 else _USUAL
