"""How a run of a list stands, in a few words."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from hourglass._tools.timeline.run_state import problem_of, run_state
from hourglass.client import WorkflowStatus


def listed(status: WorkflowStatus = WorkflowStatus.RUNNING, *problems: str, **more: Any) -> Any:
    return SimpleNamespace(status=status, reported_problems=problems, **{"close_time": None, **more})


def pending(attempt: int, *, failed: bool = True) -> Any:
    return SimpleNamespace(attempt=attempt, last_failure=RuntimeError("declined") if failed else None)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (listed(), "running"),
        (listed(WorkflowStatus.RUNNING, "category=WorkflowTaskFailed", "cause=x"), "running, parked"),
        (listed(WorkflowStatus.PAUSED, "category=WorkflowTaskFailed", "cause=x"), "paused, parked"),
        (listed(WorkflowStatus.RUNNING, "cause=x", "category=WorkflowTaskTimedOut"), "running, parked"),
        (listed(WorkflowStatus.RUNNING, "category=ActivityTaskFailed"), "running, activity fails"),
        (
            listed(WorkflowStatus.RUNNING, "category=WorkflowTaskFailed", "category=ActivityTaskFailed"),
            "running, parked",
        ),
        (listed(WorkflowStatus.RUNNING, "category=Unknown"), "running, has problems"),
        (listed(parked=True), "running, parked"),
        (listed(parked=False, pending_activities=[pending(1), pending(3)]), "running, activity fails"),
        (listed(parked=False, pending_activities=[pending(2)]), "running"),
        (listed(parked=False, pending_activities=[pending(9, failed=False)]), "running"),
        (
            listed(WorkflowStatus.TIMED_OUT, "category=WorkflowTaskFailed", close_time=datetime.now(UTC)),
            "timed out",
        ),
    ],
)
def test_status_names_the_problem_of_an_open_run(run: Any, text: str) -> None:
    """The status, and what the engine reports of an open run, or its description shows."""
    assert run_state(run, problem_of(run)) == text
    assert (problem_of(run) is not None) == ("," in text)
