"""`hourglass worker` on a real server and on a file: tasks, drain, crashes of its processes, and signals."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hourglass import Client
from hourglass.testing import DevServer

from .command import SHOP, Command, is_gone, run_command, until

pytestmark = pytest.mark.server

_numbers = itertools.count(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def queue() -> str:
    return f"command-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def client(quick_server: DevServer) -> Iterator[Client]:
    with Client.connect(quick_server.target) as client:
        yield client


@pytest.fixture
def worker(quick_server: DevServer, folder: Path, queue: str) -> Iterator[Command]:
    with Command(
        "worker", "shop.py", "--target", quick_server.target, "--task-queue", queue, cwd=folder
    ) as command:
        command.wait_running()
        yield command


def test_worker_command_stops_on_sigterm_with_exit_code_0(
    worker: Command, client: Client, queue: str
) -> None:
    assert client.execute_workflow("checkout", "1", id=f"{queue}-1", task_queue=queue) == "charged 1"
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 0, worker.text
    assert "SIGTERM: shutting down" in worker.text
    assert is_gone(worker.pids()[0])


def test_worker_command_completes_a_running_activity_after_sigterm(
    worker: Command, client: Client, queue: str
) -> None:
    handle = client.start_workflow("slowly", 2.0, id=f"{queue}-1", task_queue=queue)
    until("the activity runs", lambda: handle.describe().pending_activities)
    until("it has begun", lambda: handle.describe().pending_activities[0].last_started_time is not None)
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 0, worker.text
    assert any(
        event["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_COMPLETED" for event in handle.history().events
    ), worker.text


def test_second_sigterm_ends_the_worker_command_immediately(
    worker: Command, client: Client, queue: str
) -> None:
    handle = client.start_workflow("slowly", 60.0, id=f"{queue}-1", task_queue=queue)
    until("the activity runs", lambda: handle.describe().pending_activities)
    worker.signal(signal.SIGTERM)
    worker.wait_for("shutting down")
    worker.signal(signal.SIGTERM)
    assert worker.wait_end(10) == 128 + signal.SIGTERM
    assert is_gone(worker.pids()[0])
    handle.terminate("seen enough")


def test_signal_to_parent_and_child_counts_once(worker: Command, client: Client, queue: str) -> None:
    """Ctrl-C in a terminal and service managers signal the whole process group."""
    handle = client.start_workflow("slowly", 2.0, id=f"{queue}-1", task_queue=queue)
    until("the activity runs", lambda: handle.describe().pending_activities)
    until("it has begun", lambda: handle.describe().pending_activities[0].last_started_time is not None)
    os.kill(worker.pids()[0], signal.SIGINT)
    worker.signal(signal.SIGINT)
    os.kill(worker.pids()[0], signal.SIGINT)
    assert worker.wait_end() == 0, worker.text
    assert any(
        event["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_COMPLETED" for event in handle.history().events
    ), worker.text


def test_worker_command_replaces_a_killed_process(worker: Command, client: Client, queue: str) -> None:
    os.kill(worker.pids()[0], signal.SIGKILL)
    worker.wait_for("was killed by SIGKILL; a new process starts in 1 s")
    worker.wait_running(2)
    assert client.execute_workflow("checkout", "2", id=f"{queue}-2", task_queue=queue) == "charged 2"
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 0


def test_run_that_kills_two_worker_processes_is_quarantined(
    worker: Command, client: Client, queue: str
) -> None:
    """The third process executes the other runs."""
    handle = client.start_workflow("aborts", id=f"{queue}-1", task_queue=queue, task_timeout=1)
    worker.wait_for("was killed by SIGABRT", 2)
    worker.wait_for("2 times so far: the run is quarantined")
    assert client.execute_workflow("checkout", "2", id=f"{queue}-2", task_queue=queue) == "charged 2"
    process = subprocess.run(
        [sys.executable, "-m", "hourglass", "why", f"{queue}-1", "--target", client.target],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "is quarantined, because the worker's process died while it was executing" in process.stdout
    assert "ProcessDied: 2× while the workflow's code was executing" in process.stdout
    handle.terminate("seen enough")
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 0


def test_worker_process_ends_with_its_parent(worker: Command) -> None:
    child = worker.pids()[0]
    worker.process.kill()
    until("the child has ended", lambda: is_gone(child), 10)


def test_worker_command_serves_several_queues_with_json_logs(
    quick_server: DevServer, client: Client, folder: Path, queue: str
) -> None:
    queues = [f"{queue}-{each}" for each in ("a", "b")]
    options = [text for each in queues for text in ("--task-queue", each)]
    with Command(
        "worker",
        "shop",
        "--target",
        quick_server.target,
        "--log=json",
        "--processes=2",
        *options,
        cwd=folder,
    ) as command:
        command.wait_for("is running as well", 2)
        for each in queues:
            assert client.execute_workflow("checkout", "1", id=each, task_queue=each) == "charged 1"
        command.signal(signal.SIGTERM)
        assert command.wait_end() == 0, command.text
    documents = [json.loads(line) for line in command.lines]
    assert {"time", "level", "logger", "process", "message"} <= set(documents[0])
    assert len({each["process"] for each in documents}) == 3


def test_worker_command_without_parent_serves_status_and_stops_on_sigterm(
    quick_server: DevServer, client: Client, folder: Path, queue: str
) -> None:
    with Command(
        "worker",
        "shop.py",
        "--no-parent",
        "--status-address=127.0.0.1:0",
        "--task-queue",
        queue,
        cwd=folder,
        HOURGLASS_TARGET=quick_server.target,
    ) as command:
        command.wait_for("status on http://")
        command.wait_until_ready()
        address = next(line for line in command.lines if "status on" in line).partition("http://")[2]
        with urllib.request.urlopen(f"http://{address}", timeout=10) as answer:
            status = json.loads(answer.read())
        assert status["queues"][queue]["healthy"] is True
        assert client.execute_workflow("checkout", "1", id=queue, task_queue=queue) == "charged 1"
        command.signal(signal.SIGTERM)
        assert command.wait_end() == 0
        assert command.pids() == []


def test_worker_command_on_a_file_starts_one_process_per_processor(folder: Path, tmp_path: Path) -> None:
    """Killing the owner of the file does not stop the work."""
    target = f"local:{tmp_path / 'shop.db'}"
    processors = len(os.sched_getaffinity(0))
    with Command("worker", "shop.py", "--target", target, cwd=folder) as command:
        command.wait_running(processors)
        assert len(command.pids()) == processors
        with Client.connect(target) as client:
            assert client.execute_workflow("checkout", "1", id="one") == "charged 1"
            found = client.describe_task_queue("default").workflow_pollers
            assert {each.process_id for each in found} == set(command.pids())
            assert sum(each.is_owner for each in found) == 1
            owner = next(each.process_id for each in found if each.is_owner)
            os.kill(owner, signal.SIGKILL)
            assert client.execute_workflow("checkout", "2", id="two") == "charged 2"
        command.wait_running(
            processors + 1
        )  # the killed one has been replaced: its death is none while ending
        command.signal(signal.SIGTERM)
        assert command.wait_end() == 0, command.text


WHERE = """
import os, time
from hourglass import activity, workflow

def found():
    return [os.getpid(), sorted(os.sched_getaffinity(0))]

@activity.defn
def brief() -> list:
    end = time.thread_time() + 0.002  # enough for the owner to give some away
    while time.thread_time() < end:
        pass
    return found()

@activity.defn
async def on_a_loop() -> list:
    return found()

@activity.defn(executor="process")
def in_a_process() -> list:
    return found()

@workflow.defn
def look() -> list:
    tasks = [workflow.spawn(brief) for _ in range(40)]
    return [on_a_loop(), in_a_process(), *workflow.gather(*tasks)]
"""


@pytest.mark.parametrize("option", [(), ("--no-pin",)])
def test_worker_processes_are_pinned_to_processors_unless_disabled(
    tmp_path: Path, option: tuple[str, ...]
) -> None:
    """Event loops and process activities use all processors."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        pytest.skip("there is but one processor")
    (tmp_path / "where.py").write_text(WHERE)
    target = f"local:{tmp_path / 'where.db'}"
    with Command("worker", "where.py", "--target", target, *option, cwd=tmp_path) as command:
        command.wait_running(len(processors))
        with Client.connect(target) as client:
            places: dict[int, set[tuple[int, ...]]] = {pid: set() for pid in command.pids()}
            deadline = time.monotonic() + 60
            while not all(option or any(len(each) == 1 for each in found) for found in places.values()):
                assert time.monotonic() < deadline, places
                on_a_loop, in_a_process, *brief = client.execute_workflow("look", id=uuid.uuid4().hex)
                assert on_a_loop[1] == in_a_process[1] == processors
                for pid, found in brief:
                    places[pid].add(tuple(found))
            if option:
                for pid, found in client.execute_workflow("look", id="last"):
                    assert found == processors, pid
        if not option:
            own = [each for found in places.values() for each in found if len(each) == 1]
            assert sorted(own) == [(each,) for each in processors]
        command.signal(signal.SIGTERM)
        assert command.wait_end() == 0, command.text
        assert ("bound to CPU" in command.text) == (not option)


def test_worker_command_rejects_several_processes_in_memory(folder: Path) -> None:
    process = run_command("worker", "shop.py", "--target", "local:", "--processes", "2", cwd=folder)
    assert process.returncode == 2
    assert "use a file, such as local:orders.db, or a server" in process.stderr
