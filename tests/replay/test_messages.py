"""The report of a replay on a difference: the recorded command, the issued one, and the line in the author's code."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from hourglass import Client, History, Replayer, Worker, activity, workflow
from hourglass.errors import ApplicationError, NondeterminismError

go = workflow.Channel("go", str)


@activity.defn
def act(value: str = "") -> str:
    return value


@activity.defn
def broken() -> None:
    raise ApplicationError("no", non_retryable=True)


def spawn() -> None:
    act()


def spawn_changed() -> None:
    act()
    workflow.spawn(workflow.execute_activity, "act", "x", start_to_close_timeout=60)  # spawn


def patch() -> None:
    act()
    workflow.patched("change")
    act()


def patch_changed() -> None:
    act()
    act()  # patch


def local() -> None:
    act()
    workflow.execute_local_activity(act, start_to_close_timeout=5)


def local_changed() -> str:
    act()
    return "done"  # local


def reraised() -> None:
    try:
        broken()
    except Exception:
        act()


def reraised_changed() -> None:
    try:
        broken()
    except Exception:
        raise  # reraised


def fibers() -> None:
    def first() -> None:
        go.receive()
        act()

    task = workflow.spawn(first)
    task.result()


def fibers_changed() -> None:
    def first() -> None:
        go.receive()
        workflow.wait_condition(lambda: False)  # fibers

    task = workflow.spawn(first)
    task.result()


CHANGED = {
    "spawn": spawn_changed,
    "patch": patch_changed,
    "local": local_changed,
    "reraised": reraised_changed,
    "fibers": fibers_changed,
}
RECORDED = {
    "spawn": "completion",
    "patch": "patch with id 'change'",
    "local": "local activity act",
    "reraised": "activity act number 2",
    "fibers": "activity act number 1",
}


@pytest.fixture(scope="module")
def histories() -> dict[str, History]:
    """Histories of the unchanged workflows."""
    workflows = [workflow.defn(each) for each in (spawn, patch, local, reraised, fibers)]
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=workflows, activities=[act, broken]),
    ):
        runs = [client.start_workflow(definition) for definition in workflows]
        runs[-1].signal("go", "on")
        for run in runs:
            run.result()
        return {run.history().workflow_type: run.history() for run in runs}


@pytest.mark.parametrize("name", list(CHANGED))
def test_nondeterminism_error_names_recorded_command_and_line_of_code(
    histories: dict[str, History], name: str
) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    with Replayer(workflows=[workflow.defn(name=name)(CHANGED[name])]) as replayer:
        error = replayer.try_replay(histories[name]).error
    assert isinstance(error, NondeterminismError)
    assert error.expected.startswith(RECORDED[name])
    assert error.file == __file__
    assert lines[error.line - 1].endswith(f"# {name}")
    assert "other commands" not in str(error)
    assert "event 0" not in str(error)


def spins() -> None:
    while True:
        pass


def spins_in_a_fiber() -> None:
    workflow.spawn(spins).result()


async def spins_in_a_coroutine() -> None:
    spins()


def spins_after_an_error() -> None:
    try:
        spins()
    except Exception:
        spins()


@pytest.mark.parametrize(
    "code",
    [spins, spins_in_a_fiber, spins_in_a_coroutine, spins_after_an_error],
    ids=lambda each: each.__name__,
)
def test_replay_timeout_ends_thread_of_endless_workflow(histories: dict[str, History], code: Any) -> None:
    before = set(threading.enumerate())  # other tests of this process may have replayers
    with Replayer(workflows=[workflow.defn(name="spawn")(code)], timeout=0.3) as replayer:
        assert isinstance(replayer.try_replay(histories["spawn"]).error, TimeoutError)
    until(
        lambda: (
            not any(
                thread.name.startswith("hourglass-replay") for thread in set(threading.enumerate()) - before
            )
        )
    )
