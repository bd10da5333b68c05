"""Histories recorded by temporalio replay on the same programs as plain functions (invariant I1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import workflow
from hourglass.replay import History, Replayer

from .generated import SEEDS
from .twins import TWINS

HISTORIES = Path(__file__).parent / "histories"
NAMES = sorted(path.stem for path in HISTORIES.glob("*.json"))


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """A replayer for the whole corpus."""
    with Replayer(workflows=list(TWINS.values())) as replayer:
        yield replayer


def _history(name: str) -> History:
    return History.from_file(HISTORIES / f"{name}.json")


@pytest.mark.parametrize("name", list(NAMES))
def test_temporalio_history_replays_on_equivalent_workflow(replayer: Replayer, name: str) -> None:
    assert replayer.replay(_history(name)).ok


def test_every_equivalent_of_a_temporalio_workflow_has_a_recorded_history() -> None:
    recorded = {name.partition("-")[0] for name in NAMES}
    assert recorded == set(TWINS)
    assert {f"Interpreted-{seed:02}" for seed in SEEDS} == {n for n in NAMES if n.startswith("Interpreted-")}
    assert len(NAMES) >= 70


# Two events in one workflow task, in both orders, as recorded.
BATCHES = {
    "CancelThenResult": ["WORKFLOW_EXECUTION_CANCEL_REQUESTED", "ACTIVITY_TASK_COMPLETED"],
    "ResultThenCancel": ["ACTIVITY_TASK_COMPLETED", "WORKFLOW_EXECUTION_CANCEL_REQUESTED"],
    "CancelThenTimer": ["WORKFLOW_EXECUTION_CANCEL_REQUESTED", "TIMER_FIRED"],
    "TimerThenCancel": ["TIMER_FIRED", "WORKFLOW_EXECUTION_CANCEL_REQUESTED"],
    "ActivityAgainstTimer": ["ACTIVITY_TASK_COMPLETED", "TIMER_FIRED"],
    "TimerAgainstActivity": ["TIMER_FIRED", "ACTIVITY_TASK_COMPLETED"],
    "ConditionAgainstTimer": ["WORKFLOW_EXECUTION_SIGNALED", "TIMER_FIRED"],
    "TimerAgainstCondition": ["TIMER_FIRED", "WORKFLOW_EXECUTION_SIGNALED"],
}


@pytest.mark.parametrize("name", list(BATCHES))
def test_recorded_history_has_both_events_in_one_workflow_task(name: str) -> None:
    document = json.loads((HISTORIES / f"{name}.json").read_text(encoding="utf-8"))
    kinds = [event["eventType"].removeprefix("EVENT_TYPE_") for event in document["events"]]
    tasks = " ".join(kind for kind in kinds if kind in {*BATCHES[name], "WORKFLOW_TASK_COMPLETED"})
    assert " ".join(BATCHES[name]) in tasks


TAKEN_CHILD = Path(__file__).parent / "children" / "starts_a_taken_child.json"


@workflow.defn
def starts_a_taken_child(name: str) -> str:
    """Fails because the id of its child is in use."""
    workflow.sleep(0.01)
    return str(workflow.execute_child_workflow("sits", id=name))


def test_temporalio_history_of_a_rejected_child_start_replays() -> None:
    events = json.loads(TAKEN_CHILD.read_text())["events"]
    assert events[-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED"
    with Replayer(workflows=[starts_a_taken_child]) as replayer:
        outcome = replayer.replay(History.from_file(TAKEN_CHILD))
    assert outcome.ok, outcome
