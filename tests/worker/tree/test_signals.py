"""`Worker.run` as a program: signals drain it, a second one ends it, and nothing holds up its end."""

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
    def deaf() -> None:
        print("begun", flush=True)
        while True:
            time.sleep(0.01)  # never asks whether it is wanted

    @workflow.defn
    def w() -> None: deaf()

    def main() -> None:
        with Client.connect("local:") as client:
            client.start_workflow(w, id="w")
            Worker(client, workflows=[w], activities=[deaf], graceful_shutdown_timeout=GRACE).run()
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
def test_shutdown_keeps_the_graceful_time(program, number):
    """An activity that never ends holds up the end for the graceful time only; the exit is clean."""
    child = program(0.1)
    os.kill(child.pid, number)
    output, errors = child.communicate(timeout=20)
    assert output == "bye\n"
    assert child.returncode == 0, errors


def test_second_interrupt_ends_the_worker_at_once(program):
    """Whoever does not want to wait for the drain (an hour here) need not."""
    child = program(3600.0)
    os.kill(child.pid, signal.SIGINT)
    while _asleep_handler(child):
        pass
    os.kill(child.pid, signal.SIGINT)
    output, errors = child.communicate(timeout=20)
    assert output == ""
    assert "KeyboardInterrupt" in errors
    assert child.returncode != 0


def test_second_sigterm_ends_the_worker_at_once(program):
    """The signal does what it does to any program."""
    child = program(3600.0)
    os.kill(child.pid, signal.SIGTERM)
    while _asleep_handler(child):
        pass
    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGTERM


def _asleep_handler(child: subprocess.Popen[str]) -> bool:
    """Whether our handler of SIGTERM is still in place: it is taken away as soon as the first signal was seen."""
    with open(f"/proc/{child.pid}/status") as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & 1 << signal.SIGTERM - 1)
