"""User code in a tight loop must not stop other workflows."""

from __future__ import annotations

import threading
import uuid

import pytest

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.worker import Worker

MANY = 300_000
started, enough = threading.Event(), threading.Event()


@activity.defn(heartbeat_timeout=60)
def heartbeats_for_every_row() -> int:
    """Send heartbeats as fast as possible until `enough` is set."""
    started.set()
    for row in range(MANY):
        if enough.is_set():
            return row
        activity.heartbeat(row)
    return MANY


@workflow.defn
def floods() -> int:
    return heartbeats_for_every_row()


@workflow.defn
def modest() -> str:
    return "done"


@pytest.mark.usefixtures("each_event_loop")
def test_heartbeats_in_a_tight_loop_do_not_block_other_workflows(client: Client) -> None:
    started.clear()
    enough.clear()
    queue = f"faults-{uuid.uuid4().hex[:8]}"
    with Worker(client, queue, workflows=[floods, modest], activities=[heartbeats_for_every_row]):
        handle = client.start_workflow(floods, task_queue=queue)
        assert started.wait(30)
        assert client.execute_workflow(modest, task_queue=queue) == "done"
        enough.set()
        assert handle.result(timeout=60) < MANY
