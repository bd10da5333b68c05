"""What never comes back, and what waits for ever beside a run that is parked: said, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import WorkflowParked, WorkflowStuck
from hourglass.testing import Environment
from hourglass.workflow import Channel

words = Channel("word", str)


@workflow.defn
def spins() -> None:
    while True:
        pass


@workflow.defn
def stubborn() -> None:
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


@workflow.defn
def buggy() -> None:
    raise ValueError("a bug")


@workflow.defn
def deaf() -> str:
    return words.receive()


@workflow.defn
def greets(name: str) -> str:
    return f"hello {name}"


@pytest.mark.parametrize("hanging", [spins, stubborn])
def test_endless_code_is_interrupted(hanging: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    """It is interrupted, its place is told once, and the thread is good for the next environment."""
    with Environment(deadlock_timeout=0.2) as env, pytest.raises(WorkflowStuck, match=r"test_guard\.py:\d+"):
        env.execute_workflow(hanging)
    assert not caplog.records
    with Environment() as env:
        assert env.execute_workflow(greets, "Ann") == "hello Ann"


def test_slow_code_is_not_interrupted() -> None:
    """Code that takes its time and comes back is not interrupted; without a limit nothing is."""

    @workflow.defn
    def slow() -> str:
        with workflow.unsafe():
            time.sleep(0.3)  # slow code that comes back is the subject
        return "done"

    for limit in (5, None):
        with Environment(deadlock_timeout=limit) as env:
            assert env.execute_workflow(slow) == "done"


def test_stuck_run_is_reported_beside_a_parked_run() -> None:
    """A parked run is not tried again: a wait for another run that is stuck is told at once, time hardly moves, and both
    are named.
    """
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.execute_workflow(buggy, id="buggy-1")
        before = env.now()
        with pytest.raises(WorkflowStuck, match=r"'deaf-1' waits at .*buggy-1.* is parked"):
            env.execute_workflow(deaf, id="deaf-1")
        assert (env.now() - before).total_seconds() < 60


def test_time_passes_beside_a_parked_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Months beside a parked run cost nothing, and what is due after them comes."""
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.execute_workflow(buggy)
        handle = env.start_workflow(deaf)
        env.after(days=400).signal(handle, words, "at last")
        driver, moves = env._fixture.driver, [0]
        move = driver._move

        def counted() -> bool:
            moves[0] += 1
            return move()

        monkeypatch.setattr(driver, "_move", counted)
        assert handle.result() == "at last"
        assert 0 < moves[0] < 10


def test_queries_of_a_parked_run_raise() -> None:
    """Whoever asks a parked run is told why it does not answer, every time."""
    with Environment() as env:
        handle = env.start_workflow(buggy)
        for _ in range(3):
            with pytest.raises(WorkflowParked):
                handle.query("anything")


@activity.defn
def fails_once() -> str:
    if activity.info().attempt == 1:
        raise ValueError("not yet")
    activity.heartbeat()
    return "done"


@activity.defn
async def waits() -> str:
    return "waited"


@workflow.defn
def computes() -> str:
    total = 0
    for number in range(4_000_000):
        total += number
    workflow.sleep(0.05)
    return f"{fails_once.options(retry_policy=RetryPolicy(initial_interval=0.01))()} {waits()} {total}"


async def no_sleep(delay: float, result: object = None) -> object:
    return result


PATCHES: dict[str, Callable[..., object]] = {
    "time.sleep": lambda seconds: None,
    "time.monotonic": lambda: 0.0,
    "time.monotonic_ns": lambda: 0,
    "time.time": lambda: 0.0,
    "time.time_ns": lambda: 0,
    "time.perf_counter": lambda: 0.0,
    "asyncio.sleep": no_sleep,
}


@pytest.mark.parametrize("patched", PATCHES)
def test_patched_clocks_do_not_break_environments(patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the author's that patches a clock or `sleep` gets the same results: our own waits do not use the patch."""
    with Environment() as env:
        monkeypatch.setattr(patched, PATCHES[patched])
        assert env.execute_workflow(computes) == "done waited 7999998000000"


@pytest.mark.parametrize("patched", PATCHES)
def test_patched_clocks_do_not_break_workers(patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker and a client that are started while a clock is patched run workflows, timers and retries all the same."""
    monkeypatch.setattr(patched, PATCHES[patched])
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[computes], activities=[fails_once, waits]),
    ):
        assert client.execute_workflow(computes, rpc_timeout=20) == "done waited 7999998000000"
