"""What is taken first of what waits on a task queue. Pure.

A priority key is a number from 1, the most urgent, to 5, as on a Temporal server; what is beyond counts as 5, and where none
is given 3 does. An activity without one has that of its workflow, and so has a child without one (see `children`).
"""

from __future__ import annotations

from hourglass._embedded.rules.run import Activity, Run

LEVELS = (1, 2, 3, 4, 5)
_USUAL = 3


def key_of(run: Run, activity: Activity) -> int:
    """The priority key of an activity; 0: none."""
    return activity.spec.priority_key or run.started.priority_key


def level_of(run: Run, activity: Activity | None = None) -> int:
    """Which level a run's task, or an attempt of one of its activities, waits at."""
    key = run.started.priority_key if activity is None else key_of(run, activity)
    return min(key, LEVELS[-1]) if key > 0 else _USUAL
