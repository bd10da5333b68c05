"""Standalone activities on a file: they outlive their client and are not listed as workflows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import RetryPolicy, activity, workflow
from hourglass._embedded.api.activity_requests import named_as_runs
from hourglass.client import ActivityExecutionStatus, Client, WorkflowHandle
from hourglass.errors import ServiceError, WorkflowFailedError, WorkflowNotFoundError
from hourglass.worker import Worker

LIMIT = 60


@activity.defn
def doubles(number: int) -> int:
    return 2 * number


@workflow.defn
def waits_for_activity(number: int) -> int:
    return doubles.options(task_queue="nobody", activity_id="a")(number)


def test_standalone_activity_survives_process_restarts(tmp_path: Path) -> None:
    """Separate clients start, pause and change the activity without a worker; a later worker executes it."""
    target = f"local:{tmp_path / 'alone.db'}"
    with Client.connect(target) as client:
        handle = client.start_activity(doubles, 4, id="d-1", task_queue="nobody", request_id="r")
        handle.pause("later")
    with Client.connect(target) as client:
        again = client.get_activity_execution_handle("d-1", activity=doubles)
        assert again.describe().state == "PAUSED"
        again.update_options(task_queue="some", retry_policy=RetryPolicy(maximum_attempts=2))
        assert client.start_activity(doubles, 4, id="d-1", request_id="r").run_id == handle.run_id
    with Client.connect(target) as client:
        seen = client.get_activity_execution_handle("d-1").describe()
        assert (seen.options.task_queue, seen.options.start_to_close_timeout) == ("some", 600)
        with Worker(client, "some", activities=[doubles]):
            again = client.get_activity_execution_handle("d-1", activity=doubles)
            again.unpause()
            assert again.result(timeout=LIMIT) == 8
        assert again.describe().status == ActivityExecutionStatus.COMPLETED
        assert client.count_workflows() == 0
        assert client.count_activities("ActivityId = 'd-1' AND ExecutionStatus = 'Completed'") == 1


@workflow.defn
def targets_standalone_activity(step: str) -> str:
    """Signal or cancel a standalone activity by the id of its run, or start a child with such an id."""
    match step:
        case "signal":
            workflow.get_external_workflow_handle("__activity/held").signal("go", 1)
        case "cancel":
            workflow.get_external_workflow_handle("__activity/held").cancel()
        case _:
            workflow.execute_child_workflow(targets_standalone_activity, "none", id="__activity/child")
    return step


@pytest.mark.parametrize(
    "request_",
    [
        lambda handle: handle.signal("go", 1),
        lambda handle: handle.cancel(),
        lambda handle: handle.terminate(),
        lambda handle: handle.delete(),
        lambda handle: handle.pause(),
        lambda handle: handle.query("q"),
        lambda handle: handle.execute_update("u"),
        lambda handle: handle.reset(),
        lambda handle: handle.describe(),
        lambda handle: handle.history(),
    ],
)
def test_workflow_requests_do_not_reach_a_standalone_activity(
    request_: Callable[[WorkflowHandle], object],
) -> None:
    """A workflow task for it would never be completed."""
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[waits_for_activity], activities=[doubles]),
    ):
        handle = client.start_activity(doubles, 4, id="held", start_delay=0.5)
        with pytest.raises(WorkflowNotFoundError):
            request_(client.get_workflow_handle("__activity/held"))
        assert handle.result(timeout=LIMIT) == 8


def test_workflow_ids_of_standalone_activities_are_reserved(tmp_path: Path) -> None:
    with (
        Client.connect(f"local:{tmp_path / 'ids.db'}") as client,
        Worker(client, workflows=[targets_standalone_activity], activities=[doubles]),
    ):
        held = client.start_activity(doubles, 4, id="held", start_delay=3600)
        with pytest.raises(ServiceError, match="choose another id"):
            client.start_workflow(targets_standalone_activity, "none", id="__activity/new")
        for step in ("signal", "cancel"):
            with pytest.raises(WorkflowFailedError, match="not found"):
                client.execute_workflow(targets_standalone_activity, step, id=step)
        child = client.start_workflow(targets_standalone_activity, "child", id="child")
        until(lambda: "BadStartChild" in str(child.describe().reported_problems), "the start was taken")
        assert held.describe().status == ActivityExecutionStatus.RUNNING
        assert client.count_workflows("WorkflowId STARTS_WITH '__activity/'") == 0


@pytest.mark.parametrize(
    ("query", "workflow_query"),
    [
        ("", ""),
        ("ActivityId = 'ActivityId';", "RootWorkflowId = 'ActivityId';"),
        (
            "ActivityType = 'x' OR TaskQueue = 'y' GROUP BY ExecutionStatus",
            "WorkflowType = 'x' OR TaskQueue = 'y' GROUP BY ExecutionStatus",
        ),
    ],
)
def test_activity_filter_is_translated_to_workflow_attributes(query: str, workflow_query: str) -> None:
    assert named_as_runs(query) == workflow_query
