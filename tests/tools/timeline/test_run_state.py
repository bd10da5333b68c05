"""The status text of a run in a list."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from hourglass._tools.timeline.run_state import problem_of, run_state
from hourglass.client import WorkflowStatus


def listed_run(status: WorkflowStatus = WorkflowStatus.RUNNING, *problems: str, **more: Any) -> Any:
    return SimpleNamespace(status=status, reported_problems=problems, **{"close_time": None, **more})


def pending(attempt: int, *, failed: bool = True) -> Any:
    return SimpleNamespace(attempt=attempt, last_failure=RuntimeError("declined") if failed else None)


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (listed_run(), "running"),
        (listed_run(WorkflowStatus.RUNNING, "category=WorkflowTaskFailed", "cause=x"), "running, parked"),
        (listed_run(WorkflowStatus.PAUSED, "category=WorkflowTaskFailed", "cause=x"), "paused, parked"),
        (listed_run(WorkflowStatus.RUNNING, "cause=x", "category=WorkflowTaskTimedOut"), "running, parked"),
        (listed_run(WorkflowStatus.RUNNING, "category=ActivityTaskFailed"), "running, activity fails"),
        (
            listed_run(WorkflowStatus.RUNNING, "category=WorkflowTaskFailed", "category=ActivityTaskFailed"),
            "running, parked",
        ),
        (listed_run(WorkflowStatus.RUNNING, "category=Unknown"), "running, has problems"),
        (listed_run(parked=True), "running, parked"),
        (listed_run(parked=False, pending_activities=[pending(1), pending(3)]), "running, activity fails"),
        (listed_run(parked=False, pending_activities=[pending(2)]), "running"),
        (listed_run(parked=False, pending_activities=[pending(9, failed=False)]), "running"),
        (
            listed_run(WorkflowStatus.TIMED_OUT, "category=WorkflowTaskFailed", close_time=datetime.now(UTC)),
            "timed out",
        ),
    ],
)
def test_status_text_names_the_problem_of_an_open_run(run: Any, text: str) -> None:
    assert run_state(run, problem_of(run)) == text
    assert (problem_of(run) is not None) == ("," in text)
