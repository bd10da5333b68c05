"""A client's codec and the supervision tree: recycled handles, new holders and new connections."""

from __future__ import annotations

import time

from hourglass import Client, Worker
from worker.test_codec_edge import Reverse

from .world import ACTIVITIES, HOLDER, SUBSYSTEM, WORKFLOWS, stage, steps, waiting


def test_codec_is_used_after_handle_holder_and_runtime_are_replaced():
    codec = Reverse()
    with (
        Client.connect("local:", codec=codec) as client,
        Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        app = worker._app
        assert client.execute_workflow(steps, 1, id="first") == 4
        worker._portal.call(app.holder.recycle("default", "test"))
        assert client.execute_workflow(steps, 2, id="recycled") == 8
        worker.tree.kill(HOLDER)
        assert client.execute_workflow(steps, 3, id="new-holder") == 12
        worker.tree.kill(f"{SUBSYSTEM}/Runtime")
        assert client.execute_workflow(steps, 4, id="new-runtime") == 16
        worker._portal.call(distrust(app))
        assert client.execute_workflow(steps, 5, id="fresh") == 20
        while len(app.tables.records) > 1 or app.shared is not None:
            time.sleep(0)
        assert client.execute_workflow(steps, 6, id="last") == 24
        assert codec.threads


async def distrust(app):
    app.distrust("test")


def test_result_sent_through_a_recycled_handle_is_encoded_by_the_codec():
    with (
        Client.connect("local:", codec=Reverse()) as client,
        Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        handle = client.start_workflow(waiting, 1, id="w")
        assert stage.begun.wait(60)
        worker._portal.call(worker._app.holder.recycle("default", "test"))
        stage.go.set()
        assert handle.result(timeout=60) == 3
        assert stage.attempts == 1
