"""A worker ends: whatever is in flight, SIGTERM ends the process within the drain and a little; what ends in time counts."""

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
"""For a process to end whose drain takes a second: generous, for machines that are busy. Without a limit it took for ever."""


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.server)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"local:{tmp_path / 'runs.db'}"
    return request.getfixturevalue("quick_server").target


Begin = Callable[[str, float, str, float], "subprocess.Popen[str]"]


def started_on(target: str, *given: object) -> Iterator[subprocess.Popen[str]]:
    """A worker, once what it does is in flight; killed afterwards if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.activities.ending", target, *map(str, given)],
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
    """Starts a worker with this queue, drain, kind and duration."""
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(contextmanager(started_on)(target, *given))


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Asks it to end, and gives what it said."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert out.endswith("over\n"), (out, err)
    return out, err


def unique(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.mark.parametrize(
    "kind",
    [
        "local",
        "local after local",
        "local that is told",
        "local that swallows",
        "local that blocks",
        "thread",
        "swallows",
        "blocks",
        "to_thread",
        "process",
        "call",
        "codec",
        "interceptor",
        "workflow",
    ],
)
def test_shutdown_ends_with_hung_work(begin: Begin, kind: str, request: pytest.FixtureRequest) -> None:
    """Activities that hang, local or not, a codec, an interceptor, a workflow: none of them blocks the exit."""
    ended(begin(unique(request), 1.0, kind, ending.FOR_EVER if kind != "codec" else 0.0))


@pytest.mark.parametrize("kind", ["local", "local after local", "thread"])
def test_result_within_the_drain_counts(
    target: str, begin: Begin, kind: str, request: pytest.FixtureRequest
) -> None:
    """It comes after the signal and before the deadline: nothing is done again."""
    queue = unique(request)
    ended(begin(queue, 60.0, kind, 1.0))
    with Client.connect(target) as client, Worker(client, queue, workflows=[ending.holds]):
        # A worker without activities: what was lost could not be made good.
        handle = client.get_workflow_handle(queue)
        assert handle.result(timeout=60) == ("sleptslept" if "after" in kind else "slept")


def test_unfinished_local_activity_is_retried_by_another_worker(
    target: str, begin: Begin, request: pytest.FixtureRequest
) -> None:
    """At once; the workflow sees no failure."""
    queue = unique(request)
    ended(begin(queue, 0.5, "local", ending.FOR_EVER))
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
def test_shutdown_ends_without_a_server(kind: str) -> None:
    """The server is stopped before the signal: unsent results are abandoned."""
    with dev_server() as server:
        assert server.pid is not None
        for process in started_on(server.target, "frozen", 0.5, kind, ending.FOR_EVER):
            os.kill(server.pid, signal.SIGSTOP)
            try:
                ended(process)
            finally:
                os.kill(server.pid, signal.SIGCONT)
