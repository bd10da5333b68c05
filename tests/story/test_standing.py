"""How a run of a list stands, in a few words."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from hourglass._story.captions import problem, standing
from hourglass.client import WorkflowStatus


def listed(status: WorkflowStatus = WorkflowStatus.RUNNING, *problems: str, **more: Any) -> Any:
    return SimpleNamespace(status=status, reported_problems=problems, **{"close_time": None, **more})


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (listed(), "running"),
        (listed(WorkflowStatus.RUNNING, "category=WorkflowTaskFailed", "cause=x"), "running, code fails"),
        (listed(WorkflowStatus.PAUSED, "category=WorkflowTaskFailed", "cause=x"), "paused, code fails"),
        (
            listed(WorkflowStatus.RUNNING, "cause=x", "category=WorkflowTaskTimedOut"),
            "running, no answer in time",
        ),
        (listed(WorkflowStatus.RUNNING, "category=ActivityFailed"), "running, has problems"),
        (listed(parked=True), "running, code fails"),
        (listed(parked=False), "running"),
        (
            listed(WorkflowStatus.TIMED_OUT, "category=WorkflowTaskFailed", close_time=datetime.now(UTC)),
            "timed out",
        ),
    ],
)
def test_how_it_stands(run: Any, told: str) -> None:
    """Its status, and what keeps it from going on while it is open: as the engine reports it, or its description knows."""
    assert standing(run) == told
    assert bool(problem(run)) == ("," in told)
