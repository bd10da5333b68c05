"""Metrics of workflows, activities and workers, and code whose metrics are not recorded."""

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


def series_values(registry: Registry, name: str) -> dict[tuple[tuple[str, str], ...], Value]:
    """Return the values of all series of a metric, by labels."""
    families = {family.name: family for family in registry.collect()}
    return {} if name not in families else {sample.labels: sample.value for sample in families[name].samples}


def total(registry: Registry, name: str, **labels: str) -> float:
    """Return the sum of all series of a metric that have these labels."""
    result = 0.0
    for key, value in series_values(registry, name).items():
        if labels.items() <= dict(key).items():
            result += value.count if isinstance(value, Buckets) else value
    return result


@activity.defn
def count_call(number: int) -> int:
    activity.metric_meter().create_counter("calls").add(1, {"odd": bool(number % 2)})
    return number + 1


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def fails() -> None:
    activity.metric_meter().create_histogram("failures").record(0.2)
    raise ValueError("no")


@activity.defn(executor="process")
def meter_in_a_process() -> str:
    try:
        activity.metric_meter()
    except UsageError as error:
        return str(error)
    return "no error"


@workflow.defn
def count_runs(steps: int) -> int:
    meter = workflow.metric_meter()
    runs = meter.create_counter("runs")
    number = 0
    for _ in range(steps):
        number = count_call(number)
        runs.add(1)
        meter.create_gauge("position").set(number)
    return number


@workflow.defn
class WaitsForSignal:
    def __init__(self) -> None:
        self.done = False

    @workflow.run
    def run(self) -> None:
        workflow.metric_meter().create_counter("waits").add(1)
        workflow.wait_condition(lambda: self.done)
        workflow.metric_meter().create_counter("continued").add(1)

    @workflow.signal
    def finish(self) -> None:
        self.done = True

    @workflow.query
    def is_done(self) -> bool:
        workflow.metric_meter().create_counter("queries").add(1)
        return self.done


@workflow.defn
def call_meter_in_a_process() -> str:
    return meter_in_a_process()


@workflow.defn
def fail() -> None:
    fails.options(start_to_close_timeout=5)()


class BrokenRuns:
    """Counts the executions of the broken workflow."""

    executions = 0
    twice = threading.Event()


@workflow.defn
def broken() -> None:
    BrokenRuns.executions += 1
    if BrokenRuns.executions == 2:
        BrokenRuns.twice.set()  # the first failure has been counted
    raise KeyError("a bug")


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Return a client of each engine."""
    if request.param == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    else:
        target = (
            "local:" if request.param == "memory" else f"local:{tmp_path_factory.mktemp('m') / 'runs.db'}"
        )
    with Client.connect(target) as client:
        yield client


def test_metrics_of_a_step_are_recorded_once_despite_re_execution(client: Client) -> None:
    registry = Registry()
    with Worker(
        client,
        "metrics-a",
        workflows=[count_runs],
        activities=[count_call],
        verify="always",
        metrics=registry,
    ):
        assert client.execute_workflow(count_runs, 4, task_queue="metrics-a") == 4
    labels = {"namespace": "default", "task_queue": "metrics-a"}
    assert series_values(registry, "runs") == {
        tuple(sorted({**labels, "workflow_type": "count_runs"}.items())): 4
    }
    assert total(registry, "position", workflow_type="count_runs") == 4
    assert total(registry, "calls", **labels, activity_type="count_call", odd="true") == 2
    assert total(registry, "calls", odd="false") == 2
    assert "runs" not in {family.name for family in default_registry.collect()}


def test_workflow_metrics_are_not_recorded_again_after_a_worker_restart(client: Client) -> None:
    registry = Registry()
    options = {"workflows": [WaitsForSignal], "metrics": registry}
    with Worker(client, "metrics-b", **options):
        handle = client.start_workflow(WaitsForSignal.run, task_queue="metrics-b")
        assert handle.query(WaitsForSignal.is_done) is False
    with Worker(client, "metrics-b", **options):
        assert handle.query(WaitsForSignal.is_done) is False
        handle.signal(WaitsForSignal.finish)
        handle.result(timeout=30)
    assert total(registry, "waits") == 1
    assert total(registry, "continued") == 1


def test_replayer_records_no_metrics() -> None:
    registry = Registry()
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[count_runs], activities=[count_call], metrics=registry),
    ):
        handle = client.start_workflow(count_runs, 2)
        handle.result()
        history = handle.history()
    before = total(default_registry, "runs")
    assert Replayer(workflows=[count_runs]).replay(history).ok
    assert total(registry, "runs") == 2
    assert total(default_registry, "runs") == before


def test_worker_metrics_count_tasks_outcomes_durations_polls_and_restarts(client: Client) -> None:
    registry = Registry()
    worker = Worker(
        client,
        "metrics-c",
        workflows=[count_runs, fail],
        activities=[count_call, fails],
        metrics=registry,
    )
    with worker:
        client.execute_workflow(count_runs, 3, task_queue="metrics-c")
        failing = client.start_workflow(fail, task_queue="metrics-c")
        with pytest.raises(WorkflowFailedError):
            failing.result(timeout=30)
        assert total(registry, "hourglass_activity_executions", outcome="completed") == 3
        assert total(registry, "hourglass_activity_executions", outcome="failed", activity_type="fails") == 1
        assert total(registry, "hourglass_activity_execution_seconds") == 4
        assert total(registry, "hourglass_activity_schedule_to_start_seconds") == 4
        assert (
            total(registry, "hourglass_workflows_closed", status="completed", workflow_type="count_runs") == 1
        )
        assert total(registry, "hourglass_workflows_closed", status="failed") == 1
        assert total(registry, "hourglass_workflow_tasks", task_queue="metrics-c") >= 6
        assert total(registry, "hourglass_polls", task_queue="metrics-c") == 2
        assert total(registry, "hourglass_restarts") == 0
        worker.tree.kill("Application/Subsystem/BridgeHolder")
        client.execute_workflow(count_runs, 1, task_queue="metrics-c")
        assert total(registry, "hourglass_restarts") >= 1
        assert total(registry, "hourglass_handle_events", event="opened") >= 1
        assert total(registry, "hourglass_handle_events", event="takeovers") >= 1
    assert series_values(registry, "hourglass_polls") == {}


def test_metrics_count_parked_workflows() -> None:
    registry = Registry()
    with Client.connect("local:") as client, Worker(client, workflows=[broken], metrics=registry):
        client.start_workflow(broken)
        assert BrokenRuns.twice.wait(30)
        assert total(registry, "hourglass_parked_workflows") == 1
        assert total(registry, "hourglass_workflow_tasks_failed") >= 1


def test_status_endpoint_serves_metrics_for_prometheus() -> None:
    registry = Registry()
    with (
        Client.connect("local:") as client,
        Worker(
            client,
            workflows=[count_runs],
            activities=[count_call],
            metrics=registry,
            status_address="127.0.0.1:0",
        ) as worker,
    ):
        client.execute_workflow(count_runs, 2)
        with urllib.request.urlopen(f"http://{worker.status_address}/metrics") as answer:
            text = answer.read().decode()
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        with pytest.raises(urllib.error.HTTPError) as missing:
            urllib.request.urlopen(f"http://{worker.status_address}/metric")
        missing.value.close()
    assert 'runs_total{namespace="default",task_queue="default",workflow_type="count_runs"} 2\n' in text
    assert 'hourglass_polls{namespace="default",task_queue="default"} 2\n' in text
    assert "hourglass_activity_execution_seconds_bucket{" in text
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())


@pytest.mark.parametrize("on_file", [True, False])
def test_engine_owner_reports_open_workflows_backlog_and_store_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_file: bool
) -> None:
    monkeypatch.setattr(task_queues, "_SAMPLE_EVERY", 0.0)
    registry = Registry()
    path = tmp_path / "orders.db"
    with (
        Client.connect(f"local:{path}" if on_file else "local:") as client,
        Worker(client, workflows=[count_runs], activities=[count_call], metrics=registry),
    ):
        for number in range(3):
            client.start_workflow(count_runs, 1, id=f"unserved-{number}", task_queue="unserved")
        client.execute_workflow(count_runs, 1, id="done")
        while total(registry, "hourglass_open_workflows") != 3:
            pass
        unserved = {"task_queue": "unserved", "kind": "workflow"}
        while total(registry, "hourglass_task_queue_backlog", **unserved) != 3:
            pass
        while total(registry, "hourglass_task_queue_oldest_seconds", **unserved) == 0:
            pass
        assert total(registry, "hourglass_task_queue_backlog", task_queue="unserved", kind="activity") == 0
        size = total(registry, "hourglass_store_bytes")
        assert (size >= path.stat().st_size) if on_file else size == 0


def test_metrics_of_two_workers_of_one_client_have_separate_series() -> None:
    """They share a registry. Prometheus would reject a series that occurs twice."""
    registry = Registry()
    with (
        Client.connect("local:") as client,
        Worker(client, "one", workflows=[count_runs], activities=[count_call], metrics=registry),
        Worker(client, "two", workflows=[count_runs], activities=[count_call], metrics=registry),
    ):
        polls = [family for family in registry.collect() if family.name == "hourglass_polls"]
        assert [len(family.samples) for family in polls] == [2]
        restarts = [family for family in registry.collect() if family.name == "hourglass_restarts"]
        assert [len(family.samples) for family in restarts] == [1]


def test_environment_records_metrics_in_its_own_registry() -> None:
    registry = Registry()
    with Environment(metrics=registry) as env:
        assert env.execute_workflow(count_runs, 3) == 3
    assert total(registry, "runs") == 3
    assert total(registry, "calls") == 3
    assert total(default_registry, "runs") == 0


def test_activity_environment_records_metrics_in_the_default_registry() -> None:
    before = total(default_registry, "calls")
    assert ActivityEnvironment().run(count_call, 1) == 2
    assert total(default_registry, "calls") == before + 1


def test_metric_meter_in_a_process_activity_raises_usage_error() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[call_meter_in_a_process], activities=[meter_in_a_process]),
    ):
        assert "runs in a separate process" in client.execute_workflow(call_meter_in_a_process)


def test_metric_meter_outside_workflows_and_activities_is_rejected() -> None:
    with pytest.raises(NotInWorkflowError):
        workflow.metric_meter()
    with pytest.raises(UsageError, match="inside a running activity"):
        activity.metric_meter()
