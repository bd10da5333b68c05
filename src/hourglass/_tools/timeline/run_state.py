"""The state of an open run in the words that lists, pages and pictures share: running, or the run's problem. Pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hourglass.client import WorkflowExecution

FAILING_AFTER = 2
"""The number of consecutive failed attempts after which an activity counts as failing, as in the embedded engine."""


class Problem(Enum):
    """A problem that prevents a run from making progress. The value is the name shown in lists and pages."""

    PARKED = "parked"
    ACTIVITY_FAILS = "activity fails"
    NO_WORKER = "no worker"
    REPORTED = "has problems"

    @property
    def slug(self) -> str:
        """The name of the problem in URLs and options."""
        return self.value.replace(" ", "-")


FILTERED = (Problem.PARKED, Problem.ACTIVITY_FAILS, Problem.NO_WORKER)
"""The problems by which lists can be filtered."""


def problem_of(run: WorkflowExecution) -> Problem | None:
    """Return the problem that the engine reports or the description shows, or None for a healthy or closed run."""
    # Imported here because the help of commands that use these words must not load the engine.
    from hourglass._contract.workflows import ACTIVITY_FAILS, TASK_FAILS, TASK_TIMES_OUT

    if run.close_time is not None:
        return None
    reported = run.reported_problems
    # A description shows the problem from the first failure on, before the engine reports it.
    if TASK_FAILS in reported or TASK_TIMES_OUT in reported or getattr(run, "parked", False):
        return Problem.PARKED
    pending = getattr(run, "pending_activities", ())
    if ACTIVITY_FAILS in reported or any(map(_is_failing, pending)):
        return Problem.ACTIVITY_FAILS
    return Problem.REPORTED if reported else None


def _is_failing(activity: object) -> bool:
    attempt, failure = getattr(activity, "attempt", 0), getattr(activity, "last_failure", None)
    return failure is not None and attempt > FAILING_AFTER


def run_state(run: WorkflowExecution, problem: Problem | None) -> str:
    """Return the state of a run: `running`, `timed out`, or `running, parked`."""
    status = run.status.name.lower().replace("_", " ")
    return status if problem is None else f"{status}, {problem.value}"
