"""A regular expression that never ends holds the GIL: the parent of `hourglass worker` replaces the process.

A short test with a real server; a test of three minutes is in `tests/chaos`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, WorkflowHandle
from hourglass.testing import DevServer
from tools.cli.command import SHOP, Command, until

pytestmark = pytest.mark.server

QUEUE = f"regex-{os.getpid()}"
FOREVER = "a" * 200 + "b"


@pytest.fixture
def server_client(quick_server: DevServer) -> Iterator[Client]:
    with Client.connect(quick_server.target) as client:
        yield client


def _command(server: DevServer, folder: Path, queue: str) -> Command:
    (folder / "shop.py").write_text(SHOP)
    arguments = ("worker", "shop.py", "--target", server.target, "--task-queue", queue)
    # A state directory of its own: what the other tests recorded of the same workflow would count.
    return Command(
        *arguments, "--deadlock-timeout=0.5", cwd=folder, HOURGLASS_STATE_DIR=str(folder / "state")
    )


@pytest.fixture
def worker(quick_server: DevServer, tmp_path: Path) -> Iterator[Command]:
    with _command(quick_server, tmp_path, QUEUE) as command:
        command.wait_running()
        yield command


def test_task_that_hangs_the_starting_process_is_detected(
    quick_server: DevServer, server_client: Client, tmp_path: Path
) -> None:
    """The process hangs before its worker has reported that it runs."""
    queue = f"{QUEUE}-early"
    handle = server_client.start_workflow("catastrophe", FOREVER, id=queue, task_queue=queue)
    with _command(quick_server, tmp_path, queue) as command:
        command.wait_for("hangs: workflow catastrophe", limit=30)
        handle.terminate("seen enough")


def test_hanging_activity_blames_no_workflow(
    quick_server: DevServer, server_client: Client, tmp_path: Path
) -> None:
    queue = f"{QUEUE}-activity"
    with _command(quick_server, tmp_path, queue) as command:
        command.wait_running()
        handle = server_client.start_workflow("matches", FOREVER, id=queue, task_queue=queue)
        command.wait_for("hangs, and not in workflow code")
        command.wait_running(2)
        assert ", in match_in_activity" in command.text
        handle.terminate("seen enough")


def test_hung_process_is_replaced_and_other_runs_continue(
    worker: Command, server_client: Client, tmp_path: Path
) -> None:
    """The author's line is in the log and in the history."""
    handle = server_client.start_workflow("catastrophe", FOREVER, id=f"{QUEUE}-1", task_queue=QUEUE)
    worker.wait_for("hangs: workflow catastrophe")
    # Of a task that has timed out servers record no later failure, unless something new has happened meanwhile.
    handle.signal("nudge", "now")
    worker.wait_running(2)
    assert len(worker.pids()) == 2
    lines = (tmp_path / "shop.py").read_text().splitlines()
    line = 2 + lines.index("def catastrophe(text: str) -> bool:")
    place = f'shop.py", line {line}, in catastrophe'
    assert place in worker.text
    assert "aaaa" not in worker.text  # no values in logs
    handle_of_other_run = server_client.start_workflow("checkout", "1", id=f"{QUEUE}-2", task_queue=QUEUE)
    assert handle_of_other_run.result(timeout=60) == "charged 1"

    until("the task has failed", lambda: _events(handle, "WORKFLOW_TASK_FAILED"))
    failure = _events(handle, "WORKFLOW_TASK_FAILED")[0]["workflowTaskFailedEventAttributes"]["failure"]
    assert place in failure["stackTrace"]
    assert f"shop.py:{line} in catastrophe" in failure["message"]
    # A failed task is sent again at once; after this second time its run is not executed any more.
    worker.wait_for("a process hung while the code of workflow catastrophe")
    worker.wait_for("2 times so far: the run is quarantined")
    worker.wait_running(3)
    handle.terminate("seen enough")
    worker.signal(signal.SIGTERM)
    assert worker.wait_end() == 0, worker.text


def _events(handle: WorkflowHandle[Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in handle.history().events if event["eventType"] == f"EVENT_TYPE_{kind}"]
