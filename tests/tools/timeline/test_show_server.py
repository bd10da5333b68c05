"""`hourglass show` with a real Temporal server."""

from __future__ import annotations

import json

import pytest

from command_line import main
from hourglass.client import Client
from hourglass.testing import DevServer
from hourglass.worker import Worker

from . import flows


@pytest.mark.server
def test_show_on_a_server_includes_updates_and_steps_of_children(
    quick_server: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    target = quick_server.target
    with (
        Client.connect(target) as client,
        Worker(client, "story", workflows=[flows.tour, flows.leg], activities=[flows.flaky]),
    ):
        handle = client.start_workflow(flows.tour, "there", id="tour-1", task_queue="story")
        assert handle.execute_update("stop", "inn") == "inn"
        assert handle.result() == "there and back"
    assert main(["show", "tour-1", "--target", target, "--children", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    spans = [(each["depth"], each["kind"], each["name"]) for each in document["spans"]]
    assert spans[0] == (0, "run", "tour")
    assert (0, "update", "stop") in spans
    assert (0, "child", "leg") in spans
    assert (1, "local", "flaky") in spans
    assert document["outcome"] == "done"
