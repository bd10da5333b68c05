"""`workflow.step`: durable calls of undeclared functions."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.aio import workflow as aio
from hourglass.errors import NotInWorkflowError, UsageError, WorkflowFailedError
from hourglass.replay import Replayer
from hourglass.testing import DevServer, Environment

SEEN: list[Any] = []


def add(left: int, right: int) -> int:
    SEEN.append(("add", left, right))
    return left + right


async def double(number: int) -> int:
    return 2 * number


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self, guest: str) -> str:
        return f"{self.name} greets {guest}"


@activity.defn
def declared(number: int) -> int:
    return number + 100


@workflow.defn
def errands(base: int) -> list[Any]:
    tries = []

    def stubborn(number: int) -> int:
        tries.append(number)
        if activity.info().attempt < 3:
            raise ValueError("not yet")
        return number + base

    quick = RetryPolicy(initial_interval=0.001)
    later = workflow.start_step(add, 10, base)
    return [
        workflow.step(add, 1, base),
        workflow.step(double, base),
        workflow.step(Shop("bakery").greet, "ann"),
        workflow.step(lambda: base * 7, name="seven times"),
        workflow.step(functools.partial(add, 5), 6),
        workflow.step(stubborn, 1, retry_policy=quick),
        workflow.step(declared, 1),
        later.result(),
    ]


@aio.defn
class AsyncErrands:
    @aio.run
    async def run(self, base: int) -> list[Any]:
        return [
            await aio.step(add, 1, base),
            await aio.step(double, base),
            await aio.step(lambda: base * 7, name="seven times"),
        ]


@aio.defn
class AsyncStarts:
    @aio.run
    async def run(self, base: int) -> list[Any]:
        begun = [aio.start_step(add, number, base) for number in range(3)]
        begun.append(aio.start_step(declared, base))
        failing = aio.start_step(lambda: 1 // 0, name="fails", retry_policy=RetryPolicy(maximum_attempts=1))
        results = await asyncio.gather(*begun, failing, return_exceptions=True)
        return [*results[:-1], type(results[-1]).__name__]


EXPECTED = [3, 4, "bakery greets ann", 14, 11, 3, 101, 12]


def test_step_runs_any_callable_and_its_history_replays() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[errands, AsyncErrands, AsyncStarts], activities=[declared]) as worker,
    ):
        handle = client.start_workflow(errands, 2, id="e")
        assert handle.result() == EXPECTED
        assert client.execute_workflow(AsyncErrands.run, 2, id="a") == [3, 4, 14]
        begun = client.start_workflow(AsyncStarts.run, 2, id="b")
        assert begun.result() == [2, 3, 4, declared.fn(2), "ActivityError"]
        history, begun_history = handle.history(), begun.history()
        resolver = worker._plan.resolver
    assert not any(resolver.steps.values())  # ended steps are removed
    Replayer(workflows=[errands]).replay(history)
    Replayer(workflows=[AsyncStarts]).replay(begun_history)


def test_worker_without_activities_runs_steps() -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[AsyncErrands]):
        assert client.execute_workflow(AsyncErrands.run, 1, id="a") == [2, 2, 7]


@pytest.mark.server
def test_server_records_steps_as_local_activities(quick_server: DevServer) -> None:
    with (
        Client.connect(quick_server.target) as client,
        Worker(client, "steps", workflows=[AsyncErrands]),
        Worker(client, "errands", workflows=[errands], activities=[declared]),
    ):
        assert client.execute_workflow(AsyncErrands.run, 2, id="steps-a", task_queue="steps") == [3, 4, 14]
        assert client.execute_workflow(errands, 2, id="steps-e", task_queue="errands") == EXPECTED


def test_steps_run_or_are_faked_in_a_test_environment() -> None:
    with Environment() as env:
        assert env.execute_workflow(errands, 2) == EXPECTED
        env.fake("add", returns=1)
        assert env.execute_workflow(errands, 2)[0] == 1


@workflow.defn
def mistaken(kind: str) -> Any:
    match kind:
        case "lambda":
            return workflow.step(lambda: 1)
        case "option":
            return workflow.step(add, 1, 2, heartbeat_timeout=3)  # type: ignore[call-overload]
        case "arguments":
            return workflow.step(add, 1)  # type: ignore[call-overload]
        case "function":
            return workflow.step(3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("lambda", "needs a name"),
        ("option", "no option 'heartbeat_timeout'"),
        ("arguments", "right"),
        ("function", "a step must be a function"),
    ],
)
def test_invalid_step_calls_are_rejected(kind: str, words: str) -> None:
    with Environment(failure_exceptions=[UsageError]) as env, pytest.raises(WorkflowFailedError) as failed:
        env.execute_workflow(mistaken, kind)
    assert words in str(failed.value.__cause__)


def test_step_outside_a_workflow_is_rejected() -> None:
    with pytest.raises(NotInWorkflowError):
        workflow.step(add, 1, 2)


@workflow.defn
def kills_its_process(folder: str) -> str:
    first = workflow.step(note, folder, "first")
    return first + workflow.step(lambda: note(folder, "second", dies=True), name="second")


def note(folder: str, word: str, dies: bool = False) -> str:
    with open(Path(folder, "notes"), "a") as file:
        file.write(f"{word}\n")
    if dies and not Path(folder, "died").exists():
        Path(folder, "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return word


PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
from test_steps import Client, Worker, kills_its_process
with Client.connect(f"local:{sys.argv[2]}/flow.db") as client, Worker(client, workflows=[kills_its_process]):
    print(client.start_workflow(kills_its_process, sys.argv[2], id="d", request_id="d").result())
"""


def test_step_without_result_is_repeated_after_the_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path)]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    restarted = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert restarted.stdout == "firstsecond\n", restarted.stderr
    words = Path(tmp_path, "notes").read_text().split()
    assert words.count("second") == 2
    # The result of `first` may be lost with the process, like that of any local activity of an open task.
    assert words.count("first") in (1, 2)


@workflow.defn
def waits_in_a_step(number: int) -> int:
    return workflow.step(meet, number)


MEETING = threading.Barrier(3)


def meet(number: int) -> int:
    MEETING.wait(60)
    return number


def test_run_evicted_during_a_step_receives_the_result() -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[waits_in_a_step], max_live_workflows=1),
    ):
        handles = [client.start_workflow(waits_in_a_step, number, id=f"p{number}") for number in range(3)]
        assert [handle.result() for handle in handles] == [0, 1, 2]
