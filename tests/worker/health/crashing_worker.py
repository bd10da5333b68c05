"""A worker on a file, some of whose workflows and activities kill its process: `python crashing_worker.py FILE LOG LANES`."""

from __future__ import annotations

import os
import sys
import threading

from hourglass import Client, RetryPolicy, Worker, activity, workflow

LOG = sys.argv[2] if len(sys.argv) > 2 else os.devnull


def _log(what: str) -> None:
    with workflow.unsafe() if workflow.in_workflow() else _NoContext(), open(LOG, "a") as file:
        file.write(f"{what}\n")


class _NoContext:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


@activity.defn
def step(number: int) -> int:
    return number


@activity.defn(start_to_close_timeout=30, retry_policy=RetryPolicy(maximum_attempts=2, initial_interval=0.01))
def aborts_the_process(name: str) -> None:
    _log(f"activity {name}")
    os.abort()


@workflow.defn
def healthy(number: int) -> int:
    total = step(number)
    workflow.sleep(0.01)
    return total + step(1)


@workflow.defn
def kills_the_process(name: str) -> None:
    step(1)
    _log(f"workflow {name}")
    os.kill(os.getpid(), 9)


@workflow.defn
def kills_among_three(name: str) -> str:
    """Wait until three of these workflows execute at the same time; the one named "bad" then kills the process."""
    _log(f"kills_among_three {name}")
    if _gathering.wait_for_all() and name == "bad":
        os.kill(os.getpid(), 9)
    return name


@workflow.defn
def calls(name: str) -> None:
    aborts_the_process(name)


@workflow.defn
def calls_local(name: str) -> None:
    step.local(1)
    aborts_the_process.local(name)


@workflow.defn
def forks() -> str:
    with workflow.unsafe():
        if os.fork() == 0:
            return "child"
    return "parent"


class _FirstProcessBarrier:
    """A barrier for three workflows, in the first process only."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(3)

    def wait_for_all(self) -> bool:
        if os.environ.get("ALONE"):
            return True
        self._barrier.wait(30)
        return True


_gathering = _FirstProcessBarrier()

WORKFLOWS = [healthy, kills_the_process, kills_among_three, calls, calls_local, forks]


def main(path: str, lanes: str) -> None:
    with Client.connect(f"local:{path}") as client:
        Worker(
            client,
            workflows=WORKFLOWS,
            activities=[step, aborts_the_process],
            lanes=int(lanes),
            verify="off",
            deadlock_timeout=None,
        ).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3])
