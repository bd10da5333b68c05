"""Deeply nested child workflows: beyond a certain depth they are logged, and fail a test."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.events import RunStarted
from hourglass._worker.lanes.nesting import DEEP, NestingDepths
from hourglass.errors import UsageError, WorkflowParked
from hourglass.testing import Environment


def log_line_of_child(depths: NestingDepths, number: int, kind: str = "step", *, root: str = "run-0") -> str:
    """Return the log line for a child whose parent is the run with the previous number."""
    parent = f"run-{number - 1}"
    started = RunStarted(
        workflow_type=kind,
        workflow_id=f"id-{number}",
        parent_run_id=parent,
        root_run_id=root,
        root_workflow_id="id-0",
    )
    return depths.record(f"run-{number}", started)


def test_deeply_nested_child_is_logged_once_per_workflow_type() -> None:
    depths = NestingDepths()
    lines = [log_line_of_child(depths, number) for number in range(1, DEEP + 10)]
    assert [number for number, text in enumerate(lines, 1) if text] == [DEEP]
    assert f"is nested {DEEP} levels below workflow id-0" in lines[DEEP - 1]
    assert "workflow.continue_as_new" in lines[DEEP - 1]
    assert log_line_of_child(depths, DEEP + 10, "other") != ""


def test_many_children_of_one_parent_are_not_logged() -> None:
    depths = NestingDepths()
    for parent in ("run-0", "elsewhere"):
        for number in range(3 * DEEP):
            started = RunStarted(
                workflow_type="step", workflow_id="x", parent_run_id=parent, root_run_id="run-0"
            )
            assert depths.record(f"{parent}-{number}", started) == ""


def test_replayed_child_keeps_its_depth() -> None:
    depths = NestingDepths(most=3)
    for _ in range(10):
        for number in range(1, 4):
            log_line_of_child(depths, number)
    with pytest.raises(UsageError, match="is nested 4 levels below "):
        log_line_of_child(depths, 4)


@workflow.defn
def endless(number: int) -> int:
    return endless(number + 1)  # hourglass: allow HG117


@workflow.defn
def recurses_through_another(number: int) -> int:
    return recurses_back(number + 1)


@workflow.defn
def recurses_back(number: int) -> int:
    return recurses_through_another(number + 1)


@workflow.defn
def recurses_finitely(number: int) -> int:
    return 1 + recurses_finitely(number - 1) if number else 0


@pytest.mark.parametrize("function", [endless, recurses_through_another])
def test_endless_recursion_of_children_is_parked_in_a_test_environment(function: Any) -> None:
    with (
        Environment() as environment,
        pytest.raises(
            WorkflowParked, match="is parked: UsageError: this child workflow is nested 1001 levels "
        ),
    ):
        environment.execute_workflow(function, 0)


def test_finite_recursion_of_children_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with Environment() as environment, caplog.at_level(logging.WARNING, "hourglass"):
        assert environment.execute_workflow(recurses_finitely, 2 * DEEP) == 2 * DEEP
    (record,) = caplog.records
    assert record.getMessage().startswith("workflow recurses_finitely (")
    assert "does workflow recurses_finitely call itself without end?" in record.getMessage()
