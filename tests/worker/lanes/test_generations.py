"""Children of children of children: from a certain depth on the log says so, and a test ends."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.events import RunStarted
from hourglass._worker.lanes.generations import DEEP, Generations
from hourglass.errors import UsageError, WorkflowParked
from hourglass.testing import Environment


def begun(depths: Generations, number: int, kind: str = "step", *, root: str = "run-0") -> str:
    """What is said of a run that is a child of the one with the number before."""
    parent = f"run-{number - 1}"
    started = RunStarted(
        workflow_type=kind,
        workflow_id=f"id-{number}",
        parent_run_id=parent,
        root_run_id=root,
        root_workflow_id="id-0",
    )
    return depths.begun(f"run-{number}", started)


def test_deep_child_is_logged_once_per_type() -> None:
    """Nothing is said of those above; then one line for each type of workflow."""
    depths = Generations()
    said = [begun(depths, number) for number in range(1, DEEP + 10)]
    assert [number for number, text in enumerate(said, 1) if text] == [DEEP]
    assert f"is nested {DEEP} levels below workflow id-0" in said[DEEP - 1]
    assert "workflow.continue_as_new" in said[DEEP - 1]
    assert begun(depths, DEEP + 10, "other") != ""


def test_many_children_of_one_parent_are_not_deep() -> None:
    """Breadth is no depth, whether or not the parent was begun here."""
    depths = Generations()
    for parent in ("run-0", "elsewhere"):
        for number in range(3 * DEEP):
            started = RunStarted(
                workflow_type="step", workflow_id="x", parent_run_id=parent, root_run_id="run-0"
            )
            assert depths.begun(f"{parent}-{number}", started) == ""


def test_replayed_run_keeps_its_depth() -> None:
    """A replay, or the next run of a chain, is no new generation."""
    depths = Generations(most=3)
    for _ in range(10):
        for number in range(1, 4):
            begun(depths, number)
    with pytest.raises(UsageError, match="is nested 4 levels below "):
        begun(depths, 4)


@workflow.defn
def endless(number: int) -> int:
    return endless(number + 1)  # hourglass: allow HG117


@workflow.defn
def there(number: int) -> int:
    return back(number + 1)


@workflow.defn
def back(number: int) -> int:
    return there(number + 1)


@workflow.defn
def down(number: int) -> int:
    return 1 + down(number - 1) if number else 0


@pytest.mark.parametrize("function", [endless, there])
def test_endless_recursion_is_parked_in_tests(function: Any) -> None:
    """A workflow that calls itself, or another that calls it, is parked with a text that says so."""
    with (
        Environment() as environment,
        pytest.raises(
            WorkflowParked, match="is parked: UsageError: this child workflow is nested 1001 levels "
        ),
    ):
        environment.execute_workflow(function, 0)


def test_finite_recursion_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It runs to its end, with a warning that names the workflow."""
    with Environment() as environment, caplog.at_level(logging.WARNING, "hourglass"):
        assert environment.execute_workflow(down, 2 * DEEP) == 2 * DEEP
    (told,) = caplog.records
    assert told.getMessage().startswith("workflow down (")
    assert "does workflow down call itself without end?" in told.getMessage()
