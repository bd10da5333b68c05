"""New code that does not match the history of an open run is logged and counted, on both engines."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.metrics import Registry
from hourglass.worker import Worker

_ANNOUNCED = threading.Event()


@activity.defn
def charge() -> str:
    return "charged"


@activity.defn
def announce() -> None:
    _ANNOUNCED.set()


@workflow.defn(name="order")
def old_order() -> str:
    charge()
    announce()
    return workflow.Channel("go", str).receive()


@workflow.defn(name="order")
def new_order() -> str:
    announce()  # the removed call to charge() makes this the first command
    return workflow.Channel("go", str).receive()


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "server":
        yield request.getfixturevalue("quick_server").target
    else:
        yield "local:" if request.param == "memory" else f"local:{tmp_path / 'app.db'}"


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "error_type", "") == "NondeterminismError":
            self.records.append(record)
            self.seen.set()


def _parked(registry: Registry, queue: str) -> float:
    """Return the metric of parked runs of a task queue."""
    (family,) = (family for family in registry.collect() if family.name == "hourglass_parked_workflows")
    return sum(sample.value for sample in family.samples if ("task_queue", queue) in sample.labels)


def test_run_with_incompatible_new_code_is_logged_once_and_counted(target: str) -> None:
    _ANNOUNCED.clear()
    queue, workflow_id = f"misfit-{uuid.uuid4()}", f"order-{uuid.uuid4()}"
    with Client.connect(target) as client:
        with Worker(client, queue, workflows=[old_order], activities=[charge, announce]):
            handle = client.start_workflow(old_order, id=workflow_id, task_queue=queue)
            assert _ANNOUNCED.wait(20)
        collector = _Collector()
        logger = logging.getLogger("hourglass.worker")
        logger.addHandler(collector)
        try:
            registry = Registry()
            with Worker(
                client, queue, workflows=[new_order], activities=[charge, announce], metrics=registry
            ) as worker:
                handle.signal("go", "now")
                assert collector.seen.wait(30)
                statistics = worker.statistics()
                assert statistics.failed_tasks >= 1
                assert list(statistics.parked) == [handle.describe().run_id]
                assert _parked(registry, queue) == worker._report()["queues"][queue]["parked"] == 1
                handle.terminate()
                until(lambda: _parked(registry, queue) == 0, "the metric never falls", limit=20)
                assert worker.statistics().parked == {}
                assert worker._report()["queues"][queue]["parked"] == 0
        finally:
            logger.removeHandler(collector)
    text = collector.records[0].getMessage()
    assert len(collector.records) == 1
    assert workflow_id in text
    assert "does not match" in text
    assert "test_history_mismatch.py:" in text
    assert "Failure {" not in text
    assert "charge" in text or "ctivity" in text
