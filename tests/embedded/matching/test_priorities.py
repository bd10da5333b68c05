"""What waits on a task queue is taken by its priority: workflow tasks and attempts of activities alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass._embedded.matching.priority_queue import PriorityQueue

SEEN: list[str] = []


@activity.defn
def seen(name: str) -> str:
    """Note which attempt comes when."""
    SEEN.append(name)
    return name


@workflow.defn
def counted(name: str) -> str:
    """Note which run comes when; a worker may execute it twice, to verify it."""
    if name not in SEEN:
        SEEN.append(name)
    return name


@workflow.defn
def asks_for(queue: str, keys: list[int]) -> int:
    """Asks for an activity of each priority."""
    started = [workflow.start_activity(seen, str(key), task_queue=queue, priority_key=key) for key in keys]
    return len([each.result() for each in started])


@pytest.mark.parametrize("keys", [(5, 3, 1, 4, 2), (100, 6, 5, 1), (0, 5, 0, 4, 3, 2, 1)])
def test_most_urgent_task_comes_first(keys: tuple[int, ...]) -> None:
    """Runs of a queue that nobody served come by their priority, those without one as 3, above 5 as 5, then in order of
    arrival.
    """
    SEEN.clear()
    names = [f"{key}.{place}" for place, key in enumerate(keys)]
    with Client.connect("local:") as client:
        handles = [
            client.start_workflow(counted, name, task_queue="q", priority_key=key)
            for name, key in zip(names, keys, strict=True)
        ]
        with Worker(client, "q", workflows=[counted], max_concurrent_workflow_tasks=1):
            for handle in handles:
                handle.result(timeout=20)
    expected = [
        name for _, name in sorted(zip(keys, names, strict=True), key=lambda each: min(each[0] or 3, 5))
    ]
    assert expected == SEEN


def test_attempts_are_ordered_by_priority() -> None:
    """So do activities; one without a priority has that of its workflow."""
    SEEN.clear()
    keys = [5, 3, 0, 1, 4]
    with Client.connect("local:") as client, Worker(client, "w", workflows=[asks_for]):
        handle = client.start_workflow(asks_for, "a", keys, task_queue="w", priority_key=2)
        while len(handle.describe().pending_activities) < len(keys):
            pass
        with Worker(client, "a", activities=[seen], max_concurrent_activities=1):
            assert handle.result(timeout=20) == len(keys)
    assert SEEN == ["1", "0", "3", "4", "5"]


def test_waiting_run_can_become_more_urgent(tmp_path: Path) -> None:
    """What waits of a run, its task or attempts of its activities, takes its new place at once; a file that is opened anew, and
    the run's children and attempts, know of it.
    """
    SEEN.clear()
    target = f"local:{tmp_path / 'runs.db'}"
    with Client.connect(target) as client, Worker(client, "w", workflows=[asks_for]):
        handles = {
            name: client.start_workflow(counted, name, id=name, task_queue="q", priority_key=4)
            for name in ("a", "b", "c")
        }
        handles["c"].update_options(priority_key=1)
        one, other = (
            client.start_workflow(asks_for, "later", [0], id=name, task_queue="w")
            for name in ("one", "other")
        )
        for each in (one, other):
            while not each.describe().pending_activities:
                pass
        other.update_options(priority_key=1)
    with Client.connect(target) as client, Worker(client, "w", workflows=[asks_for]):
        client.get_workflow_handle("b").update_options(priority_key=2)
        with Worker(client, "q", workflows=[counted], max_concurrent_workflow_tasks=1):
            for name in handles:
                client.get_workflow_handle(name).result(timeout=60)
        assert SEEN == ["c", "b", "a"]
        with Worker(client, "later", activities=[who], max_concurrent_activities=1):
            for name in ("one", "other"):
                assert client.get_workflow_handle(name).result(timeout=60) == 1
    assert SEEN[3:] == ["other 1", "one 0"]


@activity.defn(name="seen")
def who(name: str) -> str:
    """Note whose attempt comes when, and how urgent it is."""
    info = activity.info()
    SEEN.append(f"{info.workflow_id} {info.priority_key}")
    return name


def test_priority_queue_keeps_order() -> None:
    """A line gives the most urgent first, keeps the place of what is put again, and forgets what is dropped."""
    line: PriorityQueue[str] = PriorityQueue()
    for key, level in (("a", 3), ("b", 1), ("c", 3), ("a", 3), ("d", 5), ("e", 3)):
        line.put(key, level)
    line.drop("c")
    line.drop("never there")
    assert [*line] == ["b", "a", "e", "d"]
    line.put("d", 1)
    assert [*line] == ["b", "d", "a", "e"]
    assert (len(line), bool(line), "c" in line) == (4, True, False)


def test_child_inherits_its_parents_priority() -> None:
    """A child without a priority of its own has that of its parent."""

    @workflow.defn
    def parent() -> str:
        """Has two children."""
        return "".join(
            str(workflow.execute_child_workflow(child, **options))
            for options in ({}, {"priority_key": 4})  # type: ignore[list-item]
        )

    @workflow.defn
    def child() -> str:
        """Says who it is."""
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
