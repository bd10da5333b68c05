"""Progress on each engine in real time: in memory, on a file, on a Temporal server."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import Client, Worker, activity, workflow
from hourglass.progress import Progress
from hourglass.testing import DevServer

pytestmark = pytest.mark.server

numbers = Progress("numbers", int)
go = workflow.Channel("go", int)


@activity.defn
def double(number: int) -> int:
    return 2 * number


@workflow.defn
def publish_between_activities(to: int) -> int:
    for number in range(to):
        numbers.publish(number)
        double(number)
    numbers.publish(to)
    return to


@workflow.defn
def publish_signals(rounds: int) -> str:
    for _ in range(2):
        numbers.publish(go.receive())
    if rounds > 1:
        workflow.continue_as_new(rounds - 1)
    return "end"


@pytest.fixture(params=["memory", "file", "server"])
def client(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> Iterator[Client]:
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'p.db'}", "server": quick_server.target}
    with Client.connect(targets[request.param]) as client:
        yield client


@pytest.fixture
def queue(client: Client) -> Iterator[str]:
    name = f"progress-{uuid.uuid4().hex[:8]}"
    with Worker(
        client,
        name,
        workflows=[publish_between_activities, publish_signals],
        activities=[double],
        verify="always",
    ):
        yield name


def test_three_readers_receive_every_progress_item_in_order(client: Client, queue: str) -> None:
    handle = client.start_workflow(publish_between_activities, 20, task_queue=queue)
    found: list[list[int]] = [[], [], []]

    def follow(into: list[int]) -> None:
        into.extend(numbers.follow(handle, timeout=60))

    readers = [threading.Thread(target=follow, args=(each,)) for each in found]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert found == [list(range(21))] * 3
    assert numbers.latest(handle) == 20


def test_progress_items_arrive_while_the_run_waits_for_signals(client: Client, queue: str) -> None:
    """Also after continue-as-new and from a stored position."""
    handle = client.start_workflow(publish_signals, 2, task_queue=queue)
    stream = numbers.follow(handle, timeout=60)
    for number in range(3):
        handle.signal(go, number)
        assert next(stream) == number
    position = stream.position
    handle.signal(go, 3)
    assert list(stream) == [3]
    assert list(numbers.follow(client.get_workflow_handle(handle.id), after=position, timeout=60)) == [3]


def test_following_progress_adds_no_history_events(client: Client, queue: str) -> None:
    handle = client.start_workflow(publish_between_activities, 3, task_queue=queue)
    assert list(numbers.follow(handle, timeout=60)) == [0, 1, 2, 3]
    kinds = {event["eventType"].removeprefix("EVENT_TYPE_") for event in handle.history().events}
    assert kinds == {
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
        "ACTIVITY_TASK_SCHEDULED",
        "ACTIVITY_TASK_STARTED",
        "ACTIVITY_TASK_COMPLETED",
        "WORKFLOW_EXECUTION_COMPLETED",
    }


def test_progress_reader_continues_after_a_worker_restart(client: Client) -> None:
    queue = f"progress-{uuid.uuid4().hex[:8]}"
    with Worker(client, queue, workflows=[publish_signals]):
        handle = client.start_workflow(publish_signals, 1, task_queue=queue)
        stream = numbers.follow(handle, timeout=60)
        handle.signal(go, 1)
        assert next(stream) == 1
    handle.signal(go, 2)
    with Worker(client, queue, workflows=[publish_signals]):
        assert list(stream) == [2]
