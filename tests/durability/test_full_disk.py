"""A file on a full disk, under a client and a worker: no activity fails that has not run, and reads are answered with a
warning.

The limit is SQLite's own here, so that the tests run everywhere; `test_faults` fills a real disk.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass._embedded.multiprocess import connection
from hourglass._embedded.store.sqlite import disk_faults
from hourglass._embedded.store.sqlite.store import SqliteStore
from hourglass._embedded.store.store import Store
from hourglass._tools.diagnosis.asking import kept_by_engine
from hourglass.errors import StorageError

PATIENCE = 30.0
begun = threading.Event()


@activity.defn
def step(number: int) -> int:
    begun.set()
    return number + 1


@workflow.defn
class Steps:
    """Waits until it is told to go on, then takes a step that has one second and one attempt."""

    def __init__(self) -> None:
        self.ready = False

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: self.ready)
        return workflow.execute_activity(
            step, 1, start_to_close_timeout=timedelta(seconds=1), retry_policy=RetryPolicy(maximum_attempts=1)
        )

    @workflow.signal
    def go(self, ballast: str) -> None:
        self.ready = True


def store_of(path: Path) -> Store:
    (host,) = [host for (_, key), host in connection._files.items() if key == os.path.realpath(path)]
    room = host.calls.engine
    assert room is not None
    store = room.engine.store
    assert isinstance(store, SqliteStore)
    return store


@contextmanager
def full_disk(store: Store) -> Iterator[None]:
    """Limit the file to its present size."""
    writer = store._opened.writer
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    try:
        yield
    finally:
        writer.execute("PRAGMA max_page_count = 1000000").fetchall()


def http_get(working: Worker, path: str) -> tuple[int, str]:
    """Request a page of the worker's status server; return status and body."""
    assert working.status_address is not None
    connection = http.client.HTTPConnection(working.status_address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.db"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    with Client.connect(f"local:{path}") as client:
        yield client


@pytest.fixture
def working(client: Client) -> Iterator[Worker]:
    with Worker(client, workflows=[Steps], activities=[step], status_address="127.0.0.1:0") as working:
        yield working


def test_activity_that_waits_for_disk_space_does_not_time_out(
    client: Client, working: Worker, path: Path
) -> None:
    begun.clear()
    handle = client.start_workflow(Steps.run, id="steps")
    store = store_of(path)
    with ThreadPoolExecutor() as pool:
        with full_disk(store):
            signal_call = pool.submit(handle.signal, Steps.go, "x" * 100_000)
            until(lambda: bool(store.held), "the disk is never full")
            # The activity must wait for longer than its start-to-close timeout.
            assert not begun.wait(3.0)
            assert not signal_call.done()
        signal_call.result(PATIENCE)
        assert handle.result(timeout=PATIENCE) == 2
    kinds = [event["eventType"] for event in handle.history().events]
    assert "EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT" not in kinds


def test_reads_and_status_pages_work_on_a_full_disk(
    client: Client, working: Worker, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handle = client.start_workflow(Steps.run, id="steps")
    until(lambda: handle.describe().history_length >= 4, "it never waits")
    store = store_of(path)
    assert http_get(working, "/ready")[0] == 200
    with ThreadPoolExecutor() as pool, full_disk(store):
        signal_call = pool.submit(handle.signal, Steps.go, "x" * 100_000)
        until(lambda: bool(store.held), "the disk is never full")
        with caplog.at_level(logging.WARNING, "hourglass"):
            assert [run.id for run in client.list_workflows()] == ["steps"]
            assert int(client.count_workflows()) == 1
            assert handle.describe().status.name == "RUNNING"
            kinds = [event["eventType"] for event in handle.history().events]
            assert "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED" not in kinds  # not written yet
            assert list(client.list_schedules()) == []
            assert client.describe_task_queue().workflow_pollers
            assert kept_by_engine(client) == ()
            until(lambda: "SignalWorkflow cannot be stored yet and waits" in caplog.text, "nobody says why")
        assert "its disk has no space left; the answer is the stored state" in caplog.text
        code, body = http_get(working, "/ready")
        assert code == 503
        assert "its disk has no space left" in body
        report = json.loads(http_get(working, "/status")[1])
        assert report["store"]["full"]
        assert report["store"]["free_bytes"] > 0
        metrics = http_get(working, "/metrics")[1]
        assert 'hourglass_store_held{namespace="default"} 1' in metrics
        assert 'hourglass_store_free_bytes{namespace="default"} ' in metrics
        with pytest.raises(StorageError, match="no space left"):
            client.start_workflow(Steps.run, id="other")
        listed = command("list", "--target", f"local:{path}")
        assert "steps" in listed.stdout
        assert "its disk has no space left" in listed.stderr
        assert "its disk has no space left" in command("why", "steps", "--target", f"local:{path}").stderr
        assert not signal_call.done()
    signal_call.result(PATIENCE)
    assert handle.result(timeout=PATIENCE) == 2
    until(lambda: http_get(working, "/ready")[0] == 200, "it is never ready again")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `hourglass` in a process of its own."""
    call = [sys.executable, "-m", "hourglass", *words]
    return subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)


def test_low_disk_space_is_logged_before_the_disk_is_full(
    client: Client,
    working: Worker,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = [20 << 20]
    monkeypatch.setattr(disk_faults, "free_bytes", lambda path: free[0])
    with caplog.at_level(logging.INFO, "hourglass"):
        until(lambda: "only 20 MiB are free" in caplog.text, "nobody warns")
        assert http_get(working, "/ready")[0] == 200
        assert json.loads(http_get(working, "/status")[1])["store"]["free_bytes"] == 20 << 20
        free[0] = 1000
        code, body = http_get(working, "/ready")
        assert code == 503
        assert "no space left" in body
        free[0] = 1 << 40
        until(lambda: "the disk has enough free space again" in caplog.text, "nobody says that it is over")
    assert http_get(working, "/ready")[0] == 200
    warned = [record for record in caplog.records if "are free on the disk" in record.getMessage()]
    assert [record.levelname for record in warned] == ["WARNING"]


def test_doctor_command_shows_free_disk_space(client: Client, path: Path) -> None:
    client.start_workflow(Steps.run, id="steps")
    result = command("doctor", "--target", f"local:{path}")
    assert " MB free" in result.stdout
