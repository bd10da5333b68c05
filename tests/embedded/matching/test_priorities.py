"""Workflow tasks and attempts are dispatched by priority."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass._embedded.matching.priority_queue import PriorityQueue

SEEN: list[str] = []


@activity.defn
def record_attempt(name: str) -> str:
    SEEN.append(name)
    return name


@workflow.defn
def record_run(name: str) -> str:
    """Record the order of runs. A worker may execute a run twice, to verify it."""
    if name not in SEEN:
        SEEN.append(name)
    return name


@workflow.defn
def schedules_activities(queue: str, keys: list[int]) -> int:
    started = [
        workflow.start_activity(record_attempt, str(key), task_queue=queue, priority_key=key) for key in keys
    ]
    return len([handle.result() for handle in started])


@pytest.mark.parametrize("keys", [(5, 3, 1, 4, 2), (100, 6, 5, 1), (0, 5, 0, 4, 3, 2, 1)])
def test_tasks_are_dispatched_by_priority(keys: tuple[int, ...]) -> None:
    """A missing priority counts as 3, one above 5 as 5; equal priorities keep their order of arrival."""
    SEEN.clear()
    names = [f"{key}.{place}" for place, key in enumerate(keys)]
    with Client.connect("local:") as client:
        handles = [
            client.start_workflow(record_run, name, task_queue="q", priority_key=key)
            for name, key in zip(names, keys, strict=True)
        ]
        with Worker(client, "q", workflows=[record_run], max_concurrent_workflow_tasks=1):
            for handle in handles:
                handle.result(timeout=20)
    expected = [
        name for _, name in sorted(zip(keys, names, strict=True), key=lambda each: min(each[0] or 3, 5))
    ]
    assert expected == SEEN


def test_attempts_are_dispatched_by_priority() -> None:
    """An activity without a priority inherits that of its workflow."""
    SEEN.clear()
    keys = [5, 3, 0, 1, 4]
    with Client.connect("local:") as client, Worker(client, "w", workflows=[schedules_activities]):
        handle = client.start_workflow(schedules_activities, "a", keys, task_queue="w", priority_key=2)
        while len(handle.describe().pending_activities) < len(keys):
            pass
        with Worker(client, "a", activities=[record_attempt], max_concurrent_activities=1):
            assert handle.result(timeout=20) == len(keys)
    assert SEEN == ["1", "0", "3", "4", "5"]


def test_priority_of_a_waiting_run_can_be_changed(tmp_path: Path) -> None:
    """The change applies to its task, its attempts and its children, and survives a restart."""
    SEEN.clear()
    target = f"local:{tmp_path / 'runs.db'}"
    with Client.connect(target) as client, Worker(client, "w", workflows=[schedules_activities]):
        handles = {
            name: client.start_workflow(record_run, name, id=name, task_queue="q", priority_key=4)
            for name in ("a", "b", "c")
        }
        handles["c"].update_options(priority_key=1)
        one, other = (
            client.start_workflow(schedules_activities, "later", [0], id=name, task_queue="w")
            for name in ("one", "other")
        )
        for each in (one, other):
            while not each.describe().pending_activities:
                pass
        other.update_options(priority_key=1)
    with Client.connect(target) as client, Worker(client, "w", workflows=[schedules_activities]):
        client.get_workflow_handle("b").update_options(priority_key=2)
        with Worker(client, "q", workflows=[record_run], max_concurrent_workflow_tasks=1):
            for name in handles:
                client.get_workflow_handle(name).result(timeout=60)
        assert SEEN == ["c", "b", "a"]
        with Worker(client, "later", activities=[record_owner], max_concurrent_activities=1):
            for name in ("one", "other"):
                assert client.get_workflow_handle(name).result(timeout=60) == 1
    assert SEEN[3:] == ["other 1", "one 0"]


@activity.defn(name="record_attempt")
def record_owner(name: str) -> str:
    info = activity.info()
    SEEN.append(f"{info.workflow_id} {info.priority_key}")
    return name


def test_priority_queue_yields_the_most_urgent_first() -> None:
    """A key that is put again keeps its position."""
    queue: PriorityQueue[str] = PriorityQueue()
    for key, level in (("a", 3), ("b", 1), ("c", 3), ("a", 3), ("d", 5), ("e", 3)):
        queue.put(key, level)
    queue.drop("c")
    queue.drop("never there")
    assert [*queue] == ["b", "a", "e", "d"]
    queue.put("d", 1)
    assert [*queue] == ["b", "d", "a", "e"]
    assert (len(queue), bool(queue), "c" in queue) == (4, True, False)


def test_child_inherits_the_priority_of_its_parent() -> None:
    @workflow.defn
    def parent() -> str:
        return "".join(
            str(workflow.execute_child_workflow(child, **options))
            for options in ({}, {"priority_key": 4})  # type: ignore[list-item]
        )

    @workflow.defn
    def child() -> str:
        return workflow.info().workflow_id[:0]

    def priority(client: Client, workflow_id: str) -> Any:
        first = client.get_workflow_handle(workflow_id).history().events[0]
        return first["workflowExecutionStartedEventAttributes"]["priority"]["priorityKey"]

    with Client.connect("local:") as client, Worker(client, "q", workflows=[parent, child]):
        handle = client.start_workflow(parent, task_queue="q", priority_key=2)
        handle.result(timeout=20)
        ids = [
            event["childWorkflowExecutionStartedEventAttributes"]["workflowExecution"]["workflowId"]
            for event in handle.history().events
            if "childWorkflowExecutionStartedEventAttributes" in event
        ]
        assert [priority(client, each) for each in ids] == [2, 4]
