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
def empty_workflow() -> None:
    pass


@workflow.defn
def calls_activity() -> None:
    workflow.execute_activity(act, task_queue="steps", start_to_close_timeout=60)


@workflow.defn
def sleeps_one_hour() -> None:
    workflow.sleep(3600)


@pytest.fixture(params=["local:", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    target = request.param
    if target == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with Client.connect(target) as client:
        yield client


def test_describe_task_queue_lists_its_pollers(client: Client) -> None:
    with Worker(client, "polled", workflows=[empty_workflow], activities=[act], identity="worker-7"):
        client.execute_workflow(
            empty_workflow, id="polled-1", task_queue="polled"
        )  # by then its polls have arrived
        found = client.describe_task_queue("polled")
        assert {each.identity for each in found.workflow_pollers} == {"worker-7"}
        assert all(each.last_seen is not None for each in found.workflow_pollers)
        none = client.describe_task_queue("lonely")
        assert (none.workflow_pollers, none.activity_pollers) == ((), ())
        if client.target == "local:":
            assert none.served == ("polled",)
            assert {each.identity for each in found.activity_pollers} == {"worker-7"}


def test_worker_without_activities_is_no_activity_poller() -> None:
    with Client.connect("local:") as client:
        with Worker(client, "half", workflows=[empty_workflow]):
            found = client.describe_task_queue("half")
            assert (len(found.workflow_pollers), len(found.activity_pollers)) == (1, 0)
        assert client.describe_task_queue("half").served == ()


def _wait_for_backlog(client: Client, queue: str, activities: bool, count: int) -> TaskQueueStats:
    """Wait until the backlog has this size and return its statistics. A server counts with a delay."""
    while True:
        found = client.describe_task_queue(queue)
        stats = found.activity_stats if activities else found.workflow_stats
        assert stats is not None
        if stats.backlog == count:
            return stats


def test_task_queue_stats_report_backlog_age_and_rates(client: Client) -> None:
    with Worker(client, "busy", workflows=[calls_activity]):
        for number in range(3):
            client.start_workflow(calls_activity, id=f"busy-{number}", task_queue="busy")
        first = _wait_for_backlog(client, "steps", True, 3)
        second = _wait_for_backlog(client, "steps", True, 3)
        assert timedelta(0) < first.backlog_age <= second.backlog_age
        assert _wait_for_backlog(client, "busy", False, 0).backlog_age == timedelta(0)
        with Worker(client, "steps", activities=[act]):
            for number in range(3):
                client.get_workflow_handle(f"busy-{number}").result()
            stats = _wait_for_backlog(client, "steps", True, 0)
            assert stats.backlog_age == timedelta(0)
            while stats.dispatch_rate == 0 or stats.add_rate == 0:
                stats = _wait_for_backlog(client, "steps", True, 0)


def _backlog_sizes(client: Client, queue: str = "default") -> tuple[int, int]:
    """Return the numbers of backlogged workflow tasks and activities. Check that the rates are 0."""
    found = client.describe_task_queue(queue)
    assert found.workflow_stats is not None
    assert found.activity_stats is not None
    for stats in (found.workflow_stats, found.activity_stats):
        assert (stats.add_rate, stats.dispatch_rate) == (0, 0)
        assert (stats.backlog_age > timedelta(0)) is bool(stats.backlog)
    return found.workflow_stats.backlog, found.activity_stats.backlog


def test_backlog_of_a_file_without_a_worker_counts_stored_tasks(tmp_path: Path) -> None:
    """Runs that are paused or wait for a future timer are not counted."""
    target = f"local:{tmp_path / 'alone.db'}"
    with Client.connect(target) as client:
        assert _backlog_sizes(client) == (0, 0)
        client.start_workflow(empty_workflow, id="waits")
        client.start_workflow(empty_workflow, id="later", start_delay=3600)
        client.start_workflow(empty_workflow, id="rests")
        client.get_workflow_handle("rests").pause("not now")
        client.start_workflow(calls_activity, id="calls", task_queue="busy")
        assert (_backlog_sizes(client), _backlog_sizes(client, "busy"), _backlog_sizes(client, "steps")) == (
            (1, 0),
            (1, 0),
            (0, 0),
        )
        with Worker(client, "busy", workflows=[calls_activity]):
            assert _wait_for_backlog(client, "default", False, 1).backlog == 1
            _wait_for_backlog(client, "steps", True, 1)
        assert (_backlog_sizes(client), _backlog_sizes(client, "busy"), _backlog_sizes(client, "steps")) == (
            (1, 0),
            (0, 0),
            (0, 1),
        )
    with Client.connect(target) as client:
        assert (_backlog_sizes(client), _backlog_sizes(client, "steps")) == ((1, 0), (0, 1))


def test_run_with_an_overdue_timer_counts_as_backlog(tmp_path: Path) -> None:
    path = str(tmp_path / "asleep.db")
    with Client.connect(f"local:{path}") as client:
        with Worker(client, workflows=[sleeps_one_hour]):
            handle = client.start_workflow(sleeps_one_hour, id="naps")
            while not any(
                event["eventType"] == "EVENT_TYPE_TIMER_STARTED" for event in handle.history().events
            ):
                pass
        assert _backlog_sizes(client) == (0, 0)
    store = SQLITE.open(path, "default", briefly=True)
    try:
        later = time.time_ns() + to_ns(7200)
        found = StoredBacklog(store, later).stats("default", activities=False)
    finally:
        store.close()
    assert found.backlog == 1
    assert 3600 <= found.backlog_age < 7200


def test_backlog_above_the_read_limit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredBacklog, "MOST", 3)
    with Client.connect(f"local:{tmp_path / 'many.db'}") as client:
        for number in range(7):
            client.start_workflow(empty_workflow, id=f"many-{number}", task_queue="busy")
        assert _backlog_sizes(client, "busy") == (7, 0)


async def test_async_client_describes_task_queues() -> None:
    async with await AsyncClient.connect("local:") as client, Worker(client, workflows=[empty_workflow]):
        found = await client.describe_task_queue()
    assert (len(found.workflow_pollers), found.name) == (1, "default")
