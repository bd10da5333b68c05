"""A worker with work in progress ends soon after SIGTERM; results within the graceful shutdown timeout count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hourglass.client import Client
from hourglass.testing import dev_server
from hourglass.worker import Worker

from . import ending

LIMIT = 45.0
"""Seconds for a process to end whose drain takes one second: generous, for busy machines."""


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.server)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"local:{tmp_path / 'runs.db'}"
    return request.getfixturevalue("quick_server").target


Begin = Callable[[str, float, str, float], "subprocess.Popen[str]"]


def started_on(target: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Start the worker and wait until its work is in progress. Afterwards kill it if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.activities.ending", target, *map(str, args)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate(timeout=30)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def begin(target: str) -> Iterator[Begin]:
    """Return a function that starts a worker with a queue, graceful timeout, kind and duration."""
    with ExitStack() as stack:
        yield lambda *args: stack.enter_context(contextmanager(started_on)(target, *args))


def terminate(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send SIGTERM, wait for the exit, and return stdout and stderr."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out.endswith("over\n"), (out, err)
    return out, err


def queue_name(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.mark.parametrize(
    "kind",
    [
        "local",
        "local after local",
        "local, waits for cancellation",
        "local, ignores cancellation",
        "local, blocks its loop",
        "thread",
        "ignores cancellation",
        "blocks its loop",
        "to_thread",
        "process",
        "call",
        "codec",
        "interceptor",
        "workflow",
    ],
)
def test_sigterm_ends_a_worker_whose_work_hangs(
    begin: Begin, kind: str, request: pytest.FixtureRequest
) -> None:
    terminate(begin(queue_name(request), 1.0, kind, ending.FOR_EVER if kind != "codec" else 0.0))


@pytest.mark.parametrize("kind", ["local", "local after local", "thread"])
def test_activity_that_ends_during_the_drain_is_not_repeated(
    target: str, begin: Begin, kind: str, request: pytest.FixtureRequest
) -> None:
    queue = queue_name(request)
    terminate(begin(queue, 60.0, kind, 1.0))
    with Client.connect(target) as client, Worker(client, queue, workflows=[ending.holds]):
        # This worker has no activities, so a lost result could not be recomputed.
        handle = client.get_workflow_handle(queue)
        assert handle.result(timeout=60) == ("sleptslept" if "after" in kind else "slept")


def test_local_activity_unfinished_at_shutdown_is_retried_by_another_worker(
    target: str, begin: Begin, request: pytest.FixtureRequest
) -> None:
    queue = queue_name(request)
    terminate(begin(queue, 0.5, "local", ending.FOR_EVER))
    made: list[Any] = []

    @ending.activity.defn(name="sleeps", start_to_close_timeout=60.0)
    def quick(seconds: float) -> str:
        made.append(seconds)
        return "again"

    with (
        Client.connect(target) as client,
        Worker(client, queue, workflows=[ending.holds], activities=[quick]),
    ):
        assert client.get_workflow_handle(queue).result(timeout=60) == "again"
    assert made == [ending.FOR_EVER]


@pytest.mark.server
@pytest.mark.parametrize("kind", ["local", "thread"])
def test_sigterm_ends_a_worker_whose_server_does_not_respond(kind: str) -> None:
    with dev_server() as server:
        assert server.pid is not None
        for process in started_on(server.target, "frozen", 0.5, kind, ending.FOR_EVER):
            os.kill(server.pid, signal.SIGSTOP)
            try:
                terminate(process)
            finally:
                os.kill(server.pid, signal.SIGCONT)
