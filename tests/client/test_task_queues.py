"""`describe_task_queue` on both engines: pollers and backlog."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from hourglass import AsyncClient, Client, Worker, activity, workflow
from hourglass._embedded.clock import to_ns
from hourglass._embedded.runs.upkeep import StoredBacklog
from hourglass._embedded.store.sqlite.store import SQLITE
from hourglass.client import TaskQueueStats
from hourglass.testing import DevServer


@activity.defn
def act() -> None:
    pass


@workflow.defn
def flow() -> None:
    pass


@workflow.defn
def calls() -> None:
    workflow.execute_activity(act, task_queue="steps", start_to_close_timeout=60)


@workflow.defn
def naps() -> None:
    workflow.sleep(3600)


@pytest.fixture(params=["local:", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    target = request.param
    if target == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with Client.connect(target) as client:
        yield client


def test_pollers_of_a_task_queue(client: Client) -> None:
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


def test_worker_without_activities_does_not_poll_for_them() -> None:
    with Client.connect("local:") as client:
        with Worker(client, "half", workflows=[flow]):
            found = client.describe_task_queue("half")
            assert (len(found.workflow_pollers), len(found.activity_pollers)) == (1, 0)
        assert client.describe_task_queue("half").served == ()


def _waiting(client: Client, queue: str, activities: bool, count: int) -> TaskQueueStats:
    """Wait until the backlog has this size and return its statistics. A server counts with a delay."""
    while True:
        found = client.describe_task_queue(queue)
        told = found.activity_stats if activities else found.workflow_stats
        assert told is not None
        if told.backlog == count:
            return told


def test_backlog_of_a_task_queue(client: Client) -> None:
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


def _stored(client: Client, queue: str = "default") -> tuple[int, int]:
    """Return the numbers of backlogged workflow tasks and activities. Check that the rates are 0."""
    found = client.describe_task_queue(queue)
    assert found.workflow_stats is not None
    assert found.activity_stats is not None
    for told in (found.workflow_stats, found.activity_stats):
        assert (told.add_rate, told.dispatch_rate) == (0, 0)
        assert (told.age > timedelta(0)) is bool(told.backlog)
    return found.workflow_stats.backlog, found.activity_stats.backlog


def test_backlog_of_a_file_without_a_worker(tmp_path: Path) -> None:
    """Runs that are paused or wait for a future timer are not counted."""
    target = f"local:{tmp_path / 'alone.db'}"
    with Client.connect(target) as client:
        assert _stored(client) == (0, 0)
        client.start_workflow(flow, id="waits")
        client.start_workflow(flow, id="later", start_delay=3600)
        client.start_workflow(flow, id="rests")
        client.get_workflow_handle("rests").pause("not now")
        client.start_workflow(calls, id="calls", task_queue="busy")
        assert (_stored(client), _stored(client, "busy"), _stored(client, "steps")) == (
            (1, 0),
            (1, 0),
            (0, 0),
        )
        with Worker(client, "busy", workflows=[calls]):
            assert _waiting(client, "default", False, 1).backlog == 1
            _waiting(client, "steps", True, 1)
        assert (_stored(client), _stored(client, "busy"), _stored(client, "steps")) == (
            (1, 0),
            (0, 0),
            (0, 1),
        )
    with Client.connect(target) as client:
        assert (_stored(client), _stored(client, "steps")) == ((1, 0), (0, 1))


def test_overdue_timer_counts_as_backlog(tmp_path: Path) -> None:
    path = str(tmp_path / "asleep.db")
    with Client.connect(f"local:{path}") as client:
        with Worker(client, workflows=[naps]):
            handle = client.start_workflow(naps, id="naps")
            while not any(
                event["eventType"] == "EVENT_TYPE_TIMER_STARTED" for event in handle.history().events
            ):
                pass
        assert _stored(client) == (0, 0)
    store = SQLITE.open(path, "default", briefly=True)
    try:
        later = time.time_ns() + to_ns(7200)
        found = StoredBacklog(store, later).stats("default", activities=False)
    finally:
        store.close()
    assert found.backlog == 1
    assert 3600 <= found.age < 7200


def test_very_large_backlog_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredBacklog, "MOST", 3)
    with Client.connect(f"local:{tmp_path / 'many.db'}") as client:
        for number in range(7):
            client.start_workflow(flow, id=f"many-{number}", task_queue="busy")
        assert _stored(client, "busy") == (7, 0)


async def _asked() -> tuple[int, str]:
    async with await AsyncClient.connect("local:") as client, Worker(client, workflows=[flow]):
        found = await client.describe_task_queue()
        return len(found.workflow_pollers), found.name


def test_async_client_describes_task_queues() -> None:
    import asyncio

    assert asyncio.run(_asked()) == (1, "default")
