"""Who serves a task queue, and what waits on it, asked by a client of either engine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hourglass import AsyncClient, Client, Worker, activity, workflow
from hourglass.client import TaskQueueStats
from hourglass.testing import DevServer


@activity.defn
def act() -> None:
    """Nothing."""


@workflow.defn
def flow() -> None:
    """Nothing."""


@workflow.defn
def calls() -> None:
    """One step."""
    workflow.execute_activity(act, task_queue="steps", start_to_close_timeout=60)


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


def _waiting(client: Client, queue: str, activities: bool, count: int) -> TaskQueueStats:
    """The figures of a queue, once so much waits there: a server counts a little later."""
    while True:
        found = client.describe_task_queue(queue)
        told = found.activity_stats if activities else found.workflow_stats
        assert told is not None
        if told.backlog == count:
            return told


def test_what_waits_on_a_queue(client: Client) -> None:
    """Tasks that no worker takes are counted, with the age of the oldest; those that were taken show in the rates."""
    with Worker(client, "busy", workflows=[calls]):
        for number in range(3):
            client.start_workflow(calls, id=f"busy-{number}", task_queue="busy")
        waits = _waiting(client, "steps", True, 3)
        older = _waiting(client, "steps", True, 3)
        assert timedelta(0) < waits.age <= older.age
        assert _waiting(client, "busy", False, 0).age == timedelta(0)
        with Worker(client, "steps", activities=[act]):
            for number in range(3):
                client.get_workflow_handle(f"busy-{number}").result()
            gone = _waiting(client, "steps", True, 0)
            assert gone.age == timedelta(0)
            while gone.dispatch_rate == 0 or gone.add_rate == 0:
                gone = _waiting(client, "steps", True, 0)


def test_a_file_that_no_worker_has_open(tmp_path: Path) -> None:
    """What waits there is in no memory: nothing is said of it rather than nothing counted."""
    target = f"local:{tmp_path / 'alone.db'}"
    with Client.connect(target) as client:
        client.start_workflow(flow, id="waits")
        assert client.describe_task_queue().workflow_stats is None
        with Worker(client, "other", workflows=[flow]):
            found = client.describe_task_queue().workflow_stats
            assert found is not None
            assert found.backlog == 1


async def _asked() -> tuple[int, str]:
    async with await AsyncClient.connect("local:") as client, Worker(client, workflows=[flow]):
        found = await client.describe_task_queue()
        return len(found.workflow_pollers), found.name


def test_the_asynchronous_face() -> None:
    """It asks the same."""
    import asyncio

    assert asyncio.run(_asked()) == (1, "default")
