"""The supervision tree over Temporal's Core and a server."""

from __future__ import annotations

import uuid

import pytest

from hourglass import Client, Worker

from .world import ACTIVITIES, EXECUTORS, HOLDER, SUBSYSTEM, WORKER, WORKFLOWS, stage, steps, waiting

pytestmark = pytest.mark.server


@pytest.mark.parametrize("path", [WORKER, HOLDER, f"{SUBSYSTEM}/Runtime", "Application/Subsystem"])
def test_activity_continues_on_a_server_while_the_killed_tree_restarts(quick_server, path):
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


def test_killed_attempt_job_is_retried_by_a_server_without_a_timeout(quick_server):
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
