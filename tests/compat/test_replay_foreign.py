"""Histories recorded by temporalio replay on the same programs as plain functions (invariant I1)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import workflow
from hourglass.errors import ApplicationError, NondeterminismError
from hourglass.replay import History, Replayer

from .generated import SEEDS
from .twins import TWINS
from .twins._corpus import act

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


def test_replay_detects_changed_order_of_commands() -> None:
    @workflow.defn(name="TaskThenMain")
    def other_order() -> str:
        act("echo", "A")
        workflow.sleep(0.01)
        return str(act("echo", "B"))

    with Replayer(workflows=[other_order]) as replayer, pytest.raises(NondeterminismError):
        replayer.replay(_history("TaskThenMain"))


def test_replay_detects_changed_activity_argument() -> None:
    """Core does not compare arguments."""

    @workflow.defn(name="RunFails")
    def other_argument() -> None:
        act("echo", "something else")
        raise ApplicationError("broken", "detail", 7, type="Broken", non_retryable=True)

    with (
        Replayer(workflows=[other_argument]) as replayer,
        pytest.raises(NondeterminismError, match="argument"),
    ):
        replayer.replay(_history("RunFails"))


def test_replay_detects_changed_workflow_result() -> None:
    @workflow.defn(name="ConditionAtOnce")
    def other_result() -> str:
        task = workflow.spawn(act, "echo", "task")
        workflow.wait_condition(lambda: True)
        workflow.start_activity("echo", "first", start_to_close_timeout=60)
        workflow.wait_condition(lambda: True, timeout=5)
        act("echo", "second")
        workflow.sleep(0.01)
        task.result()
        return "not what was recorded"

    with Replayer(workflows=[other_result]) as replayer, pytest.raises(NondeterminismError, match="result"):
        replayer.replay(_history("ConditionAtOnce"))
