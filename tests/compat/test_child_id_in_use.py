"""A history of temporalio in which a parent failed because the id of its child was in use replays with the same failure."""

from __future__ import annotations

import json
from pathlib import Path

from hourglass import workflow
from hourglass.replay import History, Replayer

HISTORY = Path(__file__).parent / "children" / "starts_a_taken_child.json"


@workflow.defn
def starts_a_taken_child(name: str) -> str:
    """Fails because the id of its child is in use."""
    workflow.sleep(0.01)
    return str(workflow.execute_child_workflow("sits", id=name))


def test_temporalio_history_of_a_rejected_child_start_replays() -> None:
    events = json.loads(HISTORY.read_text())["events"]
    assert events[-1]["eventType"] == "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED"
    with Replayer(workflows=[starts_a_taken_child]) as replayer:
        outcome = replayer.replay(History.from_file(HISTORY))
    assert outcome.ok, outcome
