"""The metric of parked runs comes from the engine: it falls when they close, and is reported once for all processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import Client, Worker, workflow
from hourglass.metrics import Registry
from hourglass.testing import DevServer


@workflow.defn(name="order")
def broken() -> str:
    return {}["missing"]


@workflow.defn(name="order")
def fixed() -> str:
    return "done"


@workflow.defn
def waits() -> str:
    return workflow.Channel("go", str).receive()


OTHER_PROCESS = """
import sys
from hourglass import Client, Worker
from hourglass.metrics import Registry
from tests.worker.health.test_parked_watch import broken, fixed, parked

registry = Registry()
with Client.connect(sys.argv[1]) as client, Worker(client, workflows=[globals()[sys.argv[2]]], metrics=registry):
    print("ready", flush=True)
    for _ in sys.stdin:
        print(parked(registry), flush=True)
"""


def parked(registry: Registry) -> dict[str, float]:
    """Return the metric of parked runs, by task queue."""
    (family,) = (family for family in registry.collect() if family.name == "hourglass_parked_workflows")
    return {dict(sample.labels)["task_queue"]: sample.value for sample in family.samples}


@contextmanager
def worker_in_another_process(target: str, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker with this workflow in another process, which prints its metric for each line on stdin."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, target, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def metric_of(process: subprocess.Popen[str]) -> dict[str, float]:
    """Return the metric of the other process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return dict(json.loads(process.stdout.readline().replace("'", '"')))


def test_parked_workflows_metric_falls_after_terminate_and_delete() -> None:
    """The worker receives no task for these runs, so it queries the engine."""
    registry = Registry()
    with Client.connect("local:") as client, Worker(client, workflows=[broken], metrics=registry) as worker:
        handles = [client.start_workflow("order", id=f"o-{number}") for number in range(3)]
        until(lambda: parked(registry) == {"default": 3}, "they are never counted")
        handles[0].terminate()
        until(lambda: parked(registry) == {"default": 2}, "the metric never falls")
        handles[1].delete()
        until(lambda: parked(registry) == {"default": 1}, "the metric never falls")
        assert list(worker.statistics().parked) == [handles[2].describe().run_id]


def test_parked_runs_of_a_file_are_counted_by_its_owner_process_only(tmp_path: Path) -> None:
    target, registry = f"local:{tmp_path / 'app.db'}", Registry()
    with (
        worker_in_another_process(target, "broken") as owner,
        Client.connect(target) as client,
        Worker(client, workflows=[broken], metrics=registry),
    ):
        handles = [client.start_workflow("order", id=f"o-{number}") for number in range(2)]
        until(lambda: metric_of(owner) == {"default": 2}, "they are never counted")
        assert parked(registry) == {}
        owner.kill()
        until(lambda: parked(registry) == {"default": 2}, "the next owner does not report it", limit=60)
        for handle in handles:
            handle.terminate()
        until(lambda: parked(registry) == {"default": 0}, "the metric never falls")


def test_engine_supplies_the_workflow_id_of_a_parked_run_known_only_by_its_run_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[waits]) as worker:
        handle = client.start_workflow(waits, id="order-1")
        (services,) = worker._app.configured()
        services.lanes.parked.note_unnamed(handle.describe().run_id, "other commands")
        services.lanes.parked.note_unnamed("no-such-run", "other commands")
        until(lambda: not services.lanes.parked.unnamed, "they are never named")
        (record,) = [
            record for record in caplog.records if "does not match its history" in record.getMessage()
        ]
        assert record.getMessage().startswith("workflow waits (order-1, run ")
        handle.terminate()


@pytest.mark.server
def test_parked_workflows_metric_falls_after_terminate_on_a_server(quick_server: DevServer) -> None:
    target, registry, queue = quick_server.target, Registry(), "parked-there"
    with (
        Client.connect(target) as client,
        Worker(client, queue, workflows=[broken], metrics=registry) as worker,
    ):
        handle = client.start_workflow("order", id="o-parked-there", task_queue=queue)
        until(lambda: parked(registry) == {queue: 1}, "it is never counted")
        handle.terminate()
        until(lambda: parked(registry) == {queue: 0}, "the metric never falls", limit=30)
        assert worker.statistics().parked == {}
