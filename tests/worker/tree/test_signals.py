"""`Worker.run` as a program: the first signal drains the worker, the second ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import sys, threading, time
    from hourglass import activity, workflow
    from hourglass.client import Client
    from hourglass.worker import Worker

    @activity.defn
    def never_returns() -> None:
        print("begun", flush=True)
        while True:
            time.sleep(0.01)  # never checks for cancellation

    @workflow.defn
    def w() -> None: never_returns()

    def main() -> None:
        with Client.connect("local:") as client:
            client.start_workflow(w, id="w")
            Worker(client, workflows=[w], activities=[never_returns], graceful_shutdown_timeout=GRACE).run()
        print("bye", flush=True)

    main()
"""


@pytest.fixture
def program():
    children = []

    def start(grace: float) -> subprocess.Popen[str]:
        code = textwrap.dedent(PROGRAM).replace("GRACE", str(grace))
        child = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_worker_within_the_graceful_time(program, number):
    child = program(0.1)
    os.kill(child.pid, number)
    output, errors = child.communicate(timeout=20)
    assert output == "bye\n"
    assert child.returncode == 0, errors


def test_second_sigint_ends_the_worker_without_draining(program):
    child = program(3600.0)
    os.kill(child.pid, signal.SIGINT)
    while _handles_sigterm(child):
        pass
    os.kill(child.pid, signal.SIGINT)
    output, errors = child.communicate(timeout=20)
    assert output == ""
    assert "KeyboardInterrupt" in errors
    assert child.returncode != 0


def test_second_sigterm_ends_the_worker_without_draining(program):
    child = program(3600.0)
    os.kill(child.pid, signal.SIGTERM)
    while _handles_sigterm(child):
        pass
    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGTERM


def _handles_sigterm(child: subprocess.Popen[str]) -> bool:
    """Whether our SIGTERM handler is installed; it is removed when the first signal was handled."""
    with open(f"/proc/{child.pid}/status") as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)
