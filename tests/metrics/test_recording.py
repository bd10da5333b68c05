"""Metrics of workflows, activities and workers: what is recorded, and what is not."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass._embedded.matching import task_queues
from hourglass.client import Client
from hourglass.errors import NotInWorkflowError, UsageError, WorkflowFailedError
from hourglass.metrics import Buckets, Registry, default_registry
from hourglass.replay import Replayer
from hourglass.testing import ActivityEnvironment, DevServer, Environment
from hourglass.worker import Worker

Value = float | Buckets


def values(registry: Registry, name: str) -> dict[tuple[tuple[str, str], ...], Value]:
    """Every series of a metric."""
    families = {each.name: each for each in registry.collect()}
    return {} if name not in families else {each.labels: each.value for each in families[name].samples}


def total(registry: Registry, name: str, **labels: str) -> float:
    """All series of a metric that have these labels, together."""
    found = 0.0
    for key, value in values(registry, name).items():
        if labels.items() <= dict(key).items():
            found += value.count if isinstance(value, Buckets) else value
    return found


@activity.defn
def counted(number: int) -> int:
    activity.metric_meter().create_counter("calls").add(1, {"odd": bool(number % 2)})
    return number + 1


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def fails() -> None:
    activity.metric_meter().create_histogram("failures").record(0.2)
    raise ValueError("no")


@activity.defn(executor="process")
def elsewhere() -> str:
    try:
        activity.metric_meter()
    except UsageError as error:
        return str(error)
    return "there is one"


@workflow.defn
def counts(steps: int) -> int:
    meter = workflow.metric_meter()
    runs = meter.create_counter("runs")
    number = 0
    for _ in range(steps):
        number = counted(number)
        runs.add(1)
        meter.create_gauge("position").set(number)
    return number


@workflow.defn
class Waits:
    def __init__(self) -> None:
        self.done = False

    @workflow.run
    def run(self) -> None:
        workflow.metric_meter().create_counter("waits").add(1)
        workflow.wait_condition(lambda: self.done)
        workflow.metric_meter().create_counter("went_on").add(1)

    @workflow.signal
    def finish(self) -> None:
        self.done = True

    @workflow.query
    def look(self) -> bool:
        workflow.metric_meter().create_counter("looks").add(1)
        return self.done


@workflow.defn
def asks_for_another_process() -> str:
    return elsewhere()


@workflow.defn
def fails_for_good() -> None:
    fails.options(start_to_close_timeout=5)()


class Broken:
    """How often the broken workflow was executed, and whether that was twice."""

    executions = 0
    again = threading.Event()


@workflow.defn
def is_broken() -> None:
    Broken.executions += 1
    if Broken.executions == 2:
        Broken.again.set()  # the first failure has been counted by then
    raise KeyError("a bug")


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of each engine."""
    if request.param == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    else:
        target = (
            "local:" if request.param == "memory" else f"local:{tmp_path_factory.mktemp('m') / 'runs.db'}"
        )
    with Client.connect(target) as client:
        yield client


def test_workflows_and_activities_record_once(client: Client) -> None:
    """Each step counts once, although the run is executed again and again to verify it; attributes say who recorded."""
    registry = Registry()
    with Worker(
        client, "metrics-a", workflows=[counts], activities=[counted], verify="always", metrics=registry
    ):
        assert client.execute_workflow(counts, 4, task_queue="metrics-a") == 4
    who = {"namespace": "default", "task_queue": "metrics-a"}
    assert values(registry, "runs") == {tuple(sorted({**who, "workflow_type": "counts"}.items())): 4}
    assert total(registry, "position", workflow_type="counts") == 4
    assert total(registry, "calls", **who, activity_type="counted", odd="true") == 2
    assert total(registry, "calls", odd="false") == 2
    assert "runs" not in {each.name for each in default_registry.collect()}


def test_replayed_run_records_no_metrics(client: Client) -> None:
    """After its worker was replaced a run records only new steps."""
    registry = Registry()
    options = {"workflows": [Waits], "metrics": registry}
    with Worker(client, "metrics-b", **options):
        handle = client.start_workflow(Waits.run, task_queue="metrics-b")
        assert handle.query(Waits.look) is False
    with Worker(client, "metrics-b", **options):
        assert handle.query(Waits.look) is False
        handle.signal(Waits.finish)
        handle.result(timeout=30)
    assert total(registry, "waits") == 1
    assert total(registry, "went_on") == 1


def test_replayer_records_no_metrics() -> None:
    """What is replayed was counted when it happened."""
    registry = Registry()
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[counts], activities=[counted], metrics=registry),
    ):
        handle = client.start_workflow(counts, 2)
        handle.result()
        history = handle.history()
    before = total(default_registry, "runs")
    assert Replayer(workflows=[counts]).replay(history).ok
    assert total(registry, "runs") == 2
    assert total(default_registry, "runs") == before


def test_worker_metrics_count_tasks_and_outcomes(client: Client) -> None:
    """Tasks, activities by outcome, how long they took and waited, runs by how they closed, polls."""
    registry = Registry()
    worker = Worker(
        client,
        "metrics-c",
        workflows=[counts, fails_for_good],
        activities=[counted, fails],
        metrics=registry,
    )
    with worker:
        client.execute_workflow(counts, 3, task_queue="metrics-c")
        failing = client.start_workflow(fails_for_good, task_queue="metrics-c")
        with pytest.raises(WorkflowFailedError):
            failing.result(timeout=30)
        assert total(registry, "hourglass_activity_executions", outcome="completed") == 3
        assert total(registry, "hourglass_activity_executions", outcome="failed", activity_type="fails") == 1
        assert total(registry, "hourglass_activity_execution_seconds") == 4
        assert total(registry, "hourglass_activity_schedule_to_start_seconds") == 4
        assert total(registry, "hourglass_workflows_closed", status="completed", workflow_type="counts") == 1
        assert total(registry, "hourglass_workflows_closed", status="failed") == 1
        assert total(registry, "hourglass_workflow_tasks", task_queue="metrics-c") >= 6
        assert total(registry, "hourglass_polls", task_queue="metrics-c") == 2
        assert total(registry, "hourglass_restarts") == 0
        worker.tree.kill("Application/Subsystem/BridgeHolder")
        client.execute_workflow(counts, 1, task_queue="metrics-c")
        assert total(registry, "hourglass_restarts") >= 1
        assert total(registry, "hourglass_handle_events", event="opened") >= 1
        assert total(registry, "hourglass_handle_events", event="takeovers") >= 1
    assert values(registry, "hourglass_polls") == {}


def test_parked_runs_are_counted() -> None:
    """A run whose code has a bug is a number that somebody can be woken by."""
    registry = Registry()
    with Client.connect("local:") as client, Worker(client, workflows=[is_broken], metrics=registry):
        client.start_workflow(is_broken)
        assert Broken.again.wait(30)
        assert total(registry, "hourglass_parked_workflows") == 1
        assert total(registry, "hourglass_workflow_tasks_failed") >= 1


def test_status_endpoint_serves_metrics() -> None:
    """`/metrics` is the registry in Prometheus' format, with what the worker knows of itself."""
    registry = Registry()
    with (
        Client.connect("local:") as client,
        Worker(
            client,
            workflows=[counts],
            activities=[counted],
            metrics=registry,
            status_address="127.0.0.1:0",
        ) as worker,
    ):
        client.execute_workflow(counts, 2)
        with urllib.request.urlopen(f"http://{worker.status_address}/metrics") as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"http://{worker.status_address}/metric")
        missing.value.close()
    assert 'runs_total{namespace="default",task_queue="default",workflow_type="counts"} 2\n' in text
    assert 'hourglass_polls{namespace="default",task_queue="default"} 2\n' in text
    assert "hourglass_activity_execution_seconds_bucket{" in text
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())


@pytest.mark.parametrize("on_a_file", [True, False])
def test_metrics_of_backlog_and_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_a_file: bool
) -> None:
    """The owner of an engine reports open runs, the backlog of queues and its age, and the size of the file."""
    monkeypatch.setattr(task_queues, "_SAMPLE_EVERY", 0.0)
    registry = Registry()
    path = tmp_path / "orders.db"
    with (
        Client.connect(f"local:{path}" if on_a_file else "local:") as client,
        Worker(client, workflows=[counts], activities=[counted], metrics=registry),
    ):
        for number in range(3):
            client.start_workflow(counts, 1, id=f"lonely-{number}", task_queue="lonely")
        client.execute_workflow(counts, 1, id="done")
        while total(registry, "hourglass_open_workflows") != 3:
            pass
        lonely = {"task_queue": "lonely", "kind": "workflow"}
        while total(registry, "hourglass_task_queue_backlog", **lonely) != 3:
            pass
        while total(registry, "hourglass_task_queue_oldest_seconds", **lonely) == 0:
            pass
        assert total(registry, "hourglass_task_queue_backlog", task_queue="lonely", kind="activity") == 0
        size = total(registry, "hourglass_store_bytes")
        assert (size >= path.stat().st_size) if on_a_file else size == 0


def test_workers_of_one_client_have_separate_series() -> None:
    """They share a tree and a registry: no series occurs twice, which Prometheus would reject."""
    registry = Registry()
    with (
        Client.connect("local:") as client,
        Worker(client, "one", workflows=[counts], activities=[counted], metrics=registry),
        Worker(client, "two", workflows=[counts], activities=[counted], metrics=registry),
    ):
        polls = [each for each in registry.collect() if each.name == "hourglass_polls"]
        assert [len(each.samples) for each in polls] == [2]
        restarts = [each for each in registry.collect() if each.name == "hourglass_restarts"]
        assert [len(each.samples) for each in restarts] == [1]


def test_environment_has_its_own_registry() -> None:
    """A test passes a registry and reads it; the process's registry does not change."""
    registry = Registry()
    with Environment(metrics=registry) as env:
        assert env.execute_workflow(counts, 3) == 3
    assert total(registry, "runs") == 3
    assert total(registry, "calls") == 3
    assert total(default_registry, "runs") == 0


def test_activity_environment_has_a_meter() -> None:
    """In an ActivityEnvironment it records in the process's registry."""
    before = total(default_registry, "calls")
    assert ActivityEnvironment().run(counted, 1) == 2
    assert total(default_registry, "calls") == before + 1


def test_process_activity_has_no_meter() -> None:
    """A process activity that asks for one gets an error with the alternative."""
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[asks_for_another_process], activities=[elsewhere]),
    ):
        assert "runs in a separate process" in client.execute_workflow(asks_for_another_process)


def test_meter_outside_workflows_and_activities_is_rejected() -> None:
    """Elsewhere there is nobody to record for: make one on a registry."""
    with pytest.raises(NotInWorkflowError):
        workflow.metric_meter()
    with pytest.raises(UsageError, match="inside a running activity"):
        activity.metric_meter()
