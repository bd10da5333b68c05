"""Workflow handles in notebooks: they display the run's timeline."""

from __future__ import annotations

import pytest
from tests.tools.web import flows

from hourglass import AsyncClient, Client, Worker
from hourglass.testing import DevServer


@pytest.mark.parametrize("target", ["local:", pytest.param("server", marks=pytest.mark.server)])
def test_handle_html_repr_shows_the_timeline_without_payloads(
    request: pytest.FixtureRequest, target: str
) -> None:
    """The repr is None if the workflow is unknown or the client is closed."""
    if target == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with (
        Client.connect(target) as client,
        Worker(client, "notebook", workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        handle = client.start_workflow(
            flows.Purchase.run, flows.Order("a secret"), id="drawn", task_queue="notebook"
        )
        handle.execute_update(flows.Purchase.note, "seen")
        assert "running" in (handle._repr_html_() or "")
        handle.signal(flows.Purchase.ship)
        handle.result()
        drawn = handle._repr_html_() or ""
        assert "<svg" in drawn
        assert "charge" in drawn
        assert "completed" in drawn
        assert "secret" not in drawn
        assert client.get_workflow_handle("nowhere")._repr_html_() is None
    assert handle._repr_html_() is None  # its client is closed


async def test_async_handle_html_repr_works_inside_an_event_loop() -> None:
    async with (
        await AsyncClient.connect("local:") as client,
        Worker(client, workflows=flows.WORKFLOWS, activities=flows.ACTIVITIES),
    ):
        handle = await client.start_workflow("quick", "ada", id="drawn")
        await handle.result()
        result = handle._repr_html_()
    assert "charge" in result
