"""A client's codec, through the whole tree: also when handles are recycled and connections are made anew."""

from __future__ import annotations

import time

from hourglass import Client, Worker
from worker.test_codec_edge import Reverse

from .world import ACTIVITIES, HOLDER, SUBSYSTEM, WORKFLOWS, stage, steps, waiting


def test_codec_is_used_before_and_after_every_kind_of_recycle():
    """A recycled handle, a new holder and fresh connections all seal and open; the engine in memory survives their ends."""
    codec = Reverse()
    with (
        Client.connect("local:", codec=codec) as client,
        Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        app = worker._app
        assert client.execute_workflow(steps, 1, id="first") == 4
        worker._portal.call(app.holder.recycle("default", "a test says so"))
        assert client.execute_workflow(steps, 2, id="recycled") == 8
        worker.tree.kill(HOLDER)
        assert client.execute_workflow(steps, 3, id="new-holder") == 12
        worker.tree.kill(f"{SUBSYSTEM}/Runtime")
        assert client.execute_workflow(steps, 4, id="new-runtime") == 16
        worker._portal.call(distrusted(app))
        assert client.execute_workflow(steps, 5, id="fresh") == 20
        while len(app.tables.records) > 1 or app.shared is not None:
            time.sleep(0)
        assert client.execute_workflow(steps, 6, id="last") == 24
        assert codec.threads


async def distrusted(app):
    app.distrust("a test says so")


def test_attempt_that_outlives_its_handle_uses_the_codec():
    """Its result travels over the old handle while that drains, sealed."""
    with (
        Client.connect("local:", codec=Reverse()) as client,
        Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        handle = client.start_workflow(waiting, 1, id="w")
        assert stage.begun.wait(60)
        worker._portal.call(worker._app.holder.recycle("default", "a test says so"))
        stage.go.set()
        assert handle.result(timeout=60) == 3
        assert stage.attempts == 1
