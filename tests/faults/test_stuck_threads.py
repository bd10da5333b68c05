"""Threads that cannot be stopped are limited: with a parent the process is replaced, otherwise it is not ready."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, Worker, workflow
from hourglass._worker.lanes.lanes import MAX_STUCK_LANES
from hourglass.testing import DevServer
from tools.cli.command import SHOP, Command, until

_RUNS = MAX_STUCK_LANES // 2 + 2  # each hangs twice before it is left alone


class Gate:
    """Blocks workflow code that cannot be interrupted."""

    opened = threading.Event()


@workflow.defn
def blocks() -> None:
    Gate.opened.wait()


def _page(worker: Worker, page: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{worker.status_address}/{page}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_process_with_stuck_threads_is_not_ready() -> None:
    """No parent process can replace it; it is ready again when the threads end."""
    Gate.opened.clear()
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[blocks], deadlock_timeout=0.1, status_address="127.0.0.1:0") as worker,
    ):
        try:
            for number in range(2 * _RUNS):
                client.start_workflow(blocks, id=f"blocks-{number}")
            until("it is not ready", lambda: _page(worker, "ready")[0] == 503)
            assert _page(worker, "live")[0] == 200
            assert _page(worker, "status")[1]["queues"]["default"]["healthy"] is False
        finally:
            Gate.opened.set()
        until("it is ready again", lambda: _page(worker, "ready")[0] == 200)


@pytest.mark.server
def test_guarded_process_with_stuck_threads_is_replaced(quick_server: DevServer, tmp_path: Path) -> None:
    """The next process knows which runs hung."""
    (tmp_path / "shop.py").write_text(SHOP)
    queue = f"stuck-{os.getpid()}"
    arguments = ("worker", "shop.py", "--target", quick_server.target, "--task-queue", queue)
    with (
        Client.connect(quick_server.target) as client,
        Command(*arguments, "--deadlock-timeout=0.2", cwd=tmp_path) as worker,
    ):
        worker.wait_running()
        handles = [
            client.start_workflow("naps", id=f"{queue}-{number}", task_queue=queue) for number in range(_RUNS)
        ]
        worker.wait_for(
            "requested its replacement: too many of its threads cannot be stopped; a new process starts in 1 s"
        )
        worker.wait_running(2)
        handle = client.start_workflow("checkout", "1", id=f"{queue}-checkout", task_queue=queue)
        assert handle.result(timeout=60) == "charged 1"
        for handle in handles:
            handle.terminate("seen enough")
        worker.signal(signal.SIGTERM)
        assert worker.wait_end() == 0, worker.text
        assert len(worker.pids()) == 2
