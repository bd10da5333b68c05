"""Who serves a task queue, asked by a client of either engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hourglass import AsyncClient, Client, Worker, activity, workflow
from hourglass.testing import DevServer


@activity.defn
def act() -> None:
    """Nothing."""


@workflow.defn
def flow() -> None:
    """Nothing."""


@pytest.fixture(params=["local:", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    target = request.param
    if target == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with Client.connect(target) as client:
        yield client


def test_who_polls(client: Client) -> None:
    """A worker is named for what it takes; a queue that nobody serves has nobody."""
    with Worker(client, "polled", workflows=[flow], activities=[act], identity="worker-7"):
        client.execute_workflow(flow, id="polled-1", task_queue="polled")  # by then its polls have arrived
        found = client.describe_task_queue("polled")
        assert {each.identity for each in found.workflow_pollers} == {"worker-7"}
        assert all(each.last_seen is not None for each in found.workflow_pollers)
        none = client.describe_task_queue("lonely")
        assert (none.workflow_pollers, none.activity_pollers) == ((), ())
        if client.target == "local:":
            assert none.served == ("polled",)
            assert {each.identity for each in found.activity_pollers} == {"worker-7"}


def test_workers_without_activities_take_none() -> None:
    """A worker that has no activities does not poll for any; when it has gone nobody does."""
    with Client.connect("local:") as client:
        with Worker(client, "half", workflows=[flow]):
            found = client.describe_task_queue("half")
            assert (len(found.workflow_pollers), len(found.activity_pollers)) == (1, 0)
        assert client.describe_task_queue("half").served == ()


async def _asked() -> tuple[int, str]:
    async with await AsyncClient.connect("local:") as client, Worker(client, workflows=[flow]):
        found = await client.describe_task_queue()
        return len(found.workflow_pollers), found.name


def test_the_asynchronous_face() -> None:
    """It asks the same."""
    import asyncio

    assert asyncio.run(_asked()) == (1, "default")
