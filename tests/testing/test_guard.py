"""Hanging code, runs that wait forever, and patched clocks in environments."""

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
def swallows_exceptions() -> None:
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
def waits_for_a_word() -> str:
    return words.receive()


@workflow.defn
def greets(name: str) -> str:
    return f"hello {name}"


@pytest.mark.parametrize("hanging", [spins, swallows_exceptions])
def test_endless_workflow_code_is_interrupted_with_its_location(
    hanging: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    with Environment(deadlock_timeout=0.2) as env, pytest.raises(WorkflowStuck, match=r"test_guard\.py:\d+"):
        env.execute_workflow(hanging)
    assert not caplog.records
    with Environment() as env:
        assert env.execute_workflow(greets, "Ann") == "hello Ann"


def test_slow_workflow_code_within_the_deadlock_timeout_is_not_interrupted() -> None:
    @workflow.defn
    def slow() -> str:
        with workflow.unsafe():
            time.sleep(0.3)  # slow code that returns
        return "done"

    for limit in (5, None):
        with Environment(deadlock_timeout=limit) as env:
            assert env.execute_workflow(slow) == "done"


def test_stuck_run_is_reported_without_delay_although_another_is_parked() -> None:
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.execute_workflow(buggy, id="buggy-1")
        before = env.now()
        with pytest.raises(WorkflowStuck, match=r"'waits_for_a_word-1' waits at .*buggy-1.* is parked"):
            env.execute_workflow(waits_for_a_word, id="waits_for_a_word-1")
        assert (env.now() - before).total_seconds() < 60


def test_virtual_time_advances_in_few_steps_while_another_run_is_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Environment() as env:
        with pytest.raises(WorkflowParked):
            env.execute_workflow(buggy)
        handle = env.start_workflow(waits_for_a_word)
        env.after(days=400).signal(handle, words, "at last")
        driver, moves = env._fixture.driver, [0]
        move = driver._move

        def counted() -> bool:
            moves[0] += 1
            return move()

        monkeypatch.setattr(driver, "_move", counted)
        assert handle.result() == "at last"
        assert 0 < moves[0] < 10


def test_query_of_a_parked_run_raises_workflow_parked() -> None:
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
def test_patched_clock_or_sleep_does_not_affect_an_environment(
    patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Environment() as env:
        monkeypatch.setattr(patched, PATCHES[patched])
        assert env.execute_workflow(computes) == "done waited 7999998000000"


@pytest.mark.parametrize("patched", PATCHES)
def test_patched_clock_or_sleep_does_not_affect_a_worker(
    patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patched, PATCHES[patched])
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[computes], activities=[fails_once, waits]),
    ):
        assert client.execute_workflow(computes, rpc_timeout=20) == "done waited 7999998000000"
