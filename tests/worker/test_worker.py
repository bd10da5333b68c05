"""The public worker on the engine in memory."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from hourglass import activity, workflow
from hourglass._worker.tree.application import Application
from hourglass.client import AsyncClient, Client
from hourglass.errors import DefinitionError, UsageError
from hourglass.worker import Worker

pytestmark = pytest.mark.usefixtures("each_event_loop")


class Place:
    def __init__(self) -> None:
        self.fixed = False


place = Place()


@pytest.fixture(autouse=True)
def _fresh_place():
    place.__init__()


@pytest.fixture
def client(each_event_loop):
    with Client.connect("local:") as client:
        yield client


@activity.defn
def double(number: int) -> int:
    return number * 2


@activity.defn
async def increase(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @activity.defn
    def greet(self, who: str) -> str:
        return f"{self.name} greets {who}"


@workflow.defn
def sums(number: int) -> int:
    tasks = [increase.start(n) for n in range(3)]
    return double(number) + sum(task.result() for task in tasks)


@workflow.defn
def greets(who: str) -> str:
    return Shop.greet(who)


@workflow.defn
def local_sum(number: int) -> int:
    return double.local(number)


@workflow.defn
def buggy() -> str:
    if not place.fixed:
        raise KeyError("a bug")
    return "fixed"


@workflow.defn
def reads_clock() -> float:
    return time.time()


EVERYTHING = [sums, greets, local_sum, buggy, reads_clock]
ACTIVITIES = [double, increase, Shop("Bob")]


def worker(client, **options) -> Worker:
    return Worker(client, workflows=EVERYTHING, activities=ACTIVITIES, **options)


@pytest.mark.parametrize("cached", [1000, 0])
def test_worker_runs_workflows_with_and_without_a_cache(client, cached):
    with worker(client, verify="always", max_cached_workflows=cached):
        assert client.execute_workflow(sums, 5, id="w") == 16
        handles = [client.start_workflow(sums, n, id=f"w{n}") for n in range(30)]
        assert [handle.result(timeout=30) for handle in handles] == [n * 2 + 6 for n in range(30)]


def test_parked_run_is_logged_and_continues_with_fixed_code(client, caplog):
    with worker(client) as working:
        handle = client.start_workflow(buggy, id="w")
        while not working.statistics().parked:
            time.sleep(0)
        place.fixed = True
        assert handle.result(timeout=60) == "fixed"
        assert working.statistics().parked == {}
        assert working.statistics().failed_tasks >= 1
    assert "is parked: KeyError at" in caplog.text


def test_watcher_logs_clock_reads_if_everything_is_verified(client, caplog):
    with worker(client, verify="always"), caplog.at_level(logging.WARNING):
        handle = client.start_workflow(reads_clock, id="w")
        while "reads a clock" not in caplog.text:
            time.sleep(0)
        handle.terminate("enough")
    assert "test_worker.py:" in caplog.text


def test_worker_finds_definitions_in_its_modules(client):
    with Worker(client, modules=[sys.modules[__name__]], activities=[Shop("Eve")]):
        assert client.execute_workflow(sums, 1, id="w") == 8
        assert client.execute_workflow(greets, "Ann", id="v") == "Eve greets Ann"


async def test_worker_runs_on_the_users_event_loop():
    async with await AsyncClient.connect("local:") as client, worker(client) as working:
        assert working.statistics().state == "running"
        assert await client.execute_workflow(sums, 5, id="w") == 16


@pytest.mark.parametrize("name", ["task_queue", "max_concurrent_activities", "status_address"])
def test_worker_options_cannot_be_changed_after_construction(client, name):
    working = worker(client)
    assert working.client is client
    with pytest.raises(AttributeError, match="create another one"):
        setattr(working, name, None)
    with working, pytest.raises(AttributeError, match="create another one"):
        setattr(working, name, None)


def test_worker_run_blocks_until_shutdown(client):
    working = worker(client)
    thread = threading.Thread(target=working.run)
    thread.start()
    assert client.execute_workflow(sums, 1, id="w") == 8
    working.shutdown()
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_worker_run_drains_and_exits_on_sigint_and_sigterm(number):
    program = """
        import os, sys, threading
        from hourglass import activity, workflow
        from hourglass.client import Client
        from hourglass.worker import Worker

        @activity.defn
        def slow() -> None:
            print("begun", flush=True)
            sys.stdin.readline()
            print("finished", flush=True)

        @workflow.defn
        def w() -> None: slow()

        with Client.connect("local:") as client:
            client.start_workflow(w, id="w")
            Worker(client, workflows=[w], activities=[slow]).run()
        print("bye", flush=True)
    """
    child = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "begun\n"
        os.kill(child.pid, number)
        child.stdin.write("go\n")
        child.stdin.flush()
        output, _ = child.communicate(timeout=30)
    finally:
        child.kill()
        child.wait()
    assert output == "finished\nbye\n"
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"task_queue": " "}, UsageError, "name of the task queue must not be empty"),
        ({"task_queue": None}, UsageError, "must be a str"),
        ({"max_concurrent_activities": 0}, UsageError, "at least 1"),
        ({"max_cached_workflows": -1}, UsageError, "must not be negative"),
        ({"verify": "sometimes"}, UsageError, "verify must be"),
        ({"verify": 2.0}, UsageError, "verify must be"),
        ({"watch": "loudly"}, UsageError, "watch must be"),
        ({"lanes": 0}, UsageError, "lanes must be"),
        ({"failure_exceptions": [3]}, DefinitionError, "exception classes"),
        ({"graceful_shutdown_timeout": -1}, UsageError, "graceful_shutdown_timeout"),
        ({"activities": [len]}, DefinitionError, "neither decorated"),
    ],
)
def test_invalid_worker_options_are_rejected_at_construction(client, options, kind, message):
    all_options = {"workflows": EVERYTHING, "activities": ACTIVITIES, **options}
    with pytest.raises(kind, match=message):
        Worker(client, **all_options)


def test_worker_without_definitions_or_client_is_rejected(client):
    with pytest.raises(UsageError, match="needs workflows, activities"):
        Worker(client)
    with pytest.raises(UsageError, match="needs a Client"):
        Worker("local:", workflows=EVERYTHING)  # type: ignore[arg-type]


def test_shutdown_that_exceeds_its_limit_continues_in_the_background(client, monkeypatch, caplog):
    monkeypatch.setattr("hourglass.worker._worker._EXIT_MARGIN", 0.05)
    stop, continued = Application._stop_worker, threading.Event()
    gate = threading.Event()

    async def hangs(app, services):
        await asyncio.to_thread(gate.wait, 60)
        await stop(app, services)
        continued.set()

    monkeypatch.setattr(Application, "_stop_worker", hangs)
    worker = Worker(client, "left", workflows=[sums], graceful_shutdown_timeout=0).start()
    worker.shutdown()
    assert worker.statistics().state == "stopped"
    assert "did not end in time and was abandoned" in caplog.text
    gate.set()
    assert continued.wait(60)


def test_plain_activity_call_while_a_worker_runs_warns(client):
    with (
        worker(client),
        pytest.warns(activity.PlainCallWarning, match="double is called as a plain"),
    ):
        double(1)
    assert double(1) == 2
