"""User code that does too much of a good thing must not stop anybody else."""

from __future__ import annotations

import threading
import uuid

import pytest

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.worker import Worker

MANY = 300_000
begun, enough = threading.Event(), threading.Event()


@activity.defn(heartbeat_timeout=60)
def beats_for_every_row() -> int:
    """Beat as fast as it can, until it is told that it is enough."""
    begun.set()
    for row in range(MANY):
        if enough.is_set():
            return row
        activity.heartbeat(row)
    return MANY


@workflow.defn
def floods() -> int:
    return beats_for_every_row()


@workflow.defn
def modest() -> str:
    return "done"


@pytest.mark.usefixtures("each_event_loop")
def test_heartbeats_in_a_tight_loop(client: Client) -> None:
    """While an activity beats for each of very many rows, the worker still runs other workflows."""
    begun.clear()
    enough.clear()
    queue = f"faults-{uuid.uuid4().hex[:8]}"
    with Worker(client, queue, workflows=[floods, modest], activities=[beats_for_every_row]):
        handle = client.start_workflow(floods, task_queue=queue)
        assert begun.wait(30)
        assert client.execute_workflow(modest, task_queue=queue) == "done"
        enough.set()
        assert handle.result(timeout=60) < MANY
