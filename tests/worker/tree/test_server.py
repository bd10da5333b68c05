"""The tree over Temporal's Core and a real server: what memory and scripts cannot show."""

from __future__ import annotations

import uuid

import pytest

from hourglass import Client, Worker

from .world import ACTIVITIES, EXECUTORS, HOLDER, SUBSYSTEM, WORKER, WORKFLOWS, stage, steps, waiting

pytestmark = pytest.mark.server


@pytest.mark.parametrize("path", [WORKER, HOLDER, f"{SUBSYSTEM}/Runtime", "Application/Subsystem"])
def test_attempt_survives_and_the_queue_is_served_again(quick_server, path):
    """Core's handle drains with its activity while another one, on a connection of its own, takes the next work."""
    queue = uuid.uuid4().hex
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        handle = client.start_workflow(waiting, 1, id=uuid.uuid4().hex, task_queue=queue)
        assert stage.begun.wait(20)
        worker.tree.kill(path.replace("default", queue))
        assert client.execute_workflow(steps, 1, id=uuid.uuid4().hex, task_queue=queue) == 4
        stage.go.set()
        assert handle.result(timeout=20) == 3
        assert stage.attempts == 1


def test_killed_attempt_is_retried_at_once(quick_server):
    """The server hears of its death, and needs no timeout."""
    queue = uuid.uuid4().hex
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        handle = client.start_workflow(waiting, 1, id=uuid.uuid4().hex, task_queue=queue)
        assert stage.begun.wait(20)
        worker.tree.kill(f"{EXECUTORS}/attempt-1")
        stage.go.set()
        assert handle.result(timeout=20) == 3
        assert stage.attempts == 2
