"""Coroutine workflows under test tools and guards: virtual time, second execution, call watcher, `explore`, replay
and deadlock detector.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from hourglass import Client, Worker
from hourglass.aio import activity, workflow
from hourglass.aio.client import Client as AioClient
from hourglass.aio.exceptions import ActivityError
from hourglass.aio.worker import Worker as AioWorker
from hourglass.errors import ExplorationFailed, NondeterminismError, WorkflowParked, WorkflowStuck
from hourglass.replay import Replayer
from hourglass.testing import Environment, sometime


@activity.defn
async def price(item: str) -> int:
    return len(item)


@workflow.defn
class WaitsForever:
    @workflow.run
    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()


@workflow.defn
class ReadsRealClock:
    @workflow.run
    async def run(self) -> float:
        await asyncio.sleep(1)
        return time.time()


@workflow.defn
class NondeterministicSleep:
    executions = 0

    @workflow.run
    async def run(self) -> None:
        NondeterministicSleep.executions += 1
        await asyncio.sleep(NondeterministicSleep.executions)


@workflow.defn
class PriceOrder:
    """Unless `careful`, ignores a signal that arrives during its activity."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.item = "lamp"

    @workflow.run
    async def run(self, careful: bool) -> list[object]:
        cost = await workflow.execute_activity(price, self.item)
        if careful:
            while self.changed.is_set():
                self.changed.clear()
                cost = await workflow.execute_activity(price, self.item)
        return [self.item, cost]

    @workflow.signal
    async def change(self, item: str) -> None:
        self.item = item
        self.changed.set()


async def doubled(number: int) -> int:
    await asyncio.sleep(number)
    return 2 * number


@workflow.defn
class SumsConcurrently:
    @workflow.run
    async def run(self) -> int:
        return sum(await asyncio.gather(doubled(1), doubled(2)))


@workflow.defn
class BlocksWorkflowThread:
    gate = threading.Event()

    @workflow.run
    async def run(self) -> str:
        BlocksWorkflowThread.gate.wait()
        return "went on"


def test_coroutine_waiting_for_a_plain_future_is_reported_with_its_line() -> None:
    line = WaitsForever.run.__hourglass_run__.__code__.co_firstlineno + 2  # below the decorator and the `def`
    with Environment() as env, pytest.raises(WorkflowStuck, match=rf"test_testing_tools\.py:{line} "):
        env.execute_workflow(WaitsForever.run)


def test_nondeterministic_coroutine_workflow_is_parked_with_its_line() -> None:
    with Environment() as env, pytest.raises(WorkflowParked) as parked:
        env.execute_workflow(NondeterministicSleep.run)
    assert isinstance(parked.value.__cause__, NondeterminismError) or "not deterministic" in str(parked.value)
    assert "test_testing_tools.py" in str(parked.value)


def test_call_watcher_reports_time_calls_in_coroutines(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Client.connect("local:") as client,
        Worker(client, workflows=[ReadsRealClock], watch="error", verify="off") as worker,
    ):
        client.start_workflow(ReadsRealClock.run)
        while not worker.statistics().parked:
            time.sleep(0.01)
    assert "calls time.time(), which reads a clock" in caplog.text
    assert "test_testing_tools.py" in caplog.text


def _expect(result: list[object], env: Environment) -> None:
    item, cost = result
    assert cost == len(str(item))


@pytest.mark.parametrize("careful", [False, True])
def test_explore_finds_a_signal_race_in_a_coroutine_workflow(careful: bool) -> None:
    """The workflow without the bug passes in several orders."""
    with Environment() as env:
        arrivals = [sometime().signal(PriceOrder.change, "chandelier")]
        if careful:
            found = env.explore(
                PriceOrder.run, True, runs=60, seed=1, check=_expect, arrivals=arrivals, failures=False
            )
            assert found.orders > 1
        else:
            with pytest.raises(ExplorationFailed):
                env.explore(
                    PriceOrder.run, False, runs=60, seed=1, check=_expect, arrivals=arrivals, failures=False
                )


def test_deadlock_detector_logs_the_line_of_a_blocking_coroutine(caplog: pytest.LogCaptureFixture) -> None:
    """Other runs continue meanwhile."""
    BlocksWorkflowThread.gate.clear()
    with (
        caplog.at_level(logging.WARNING),
        Client.connect("local:") as client,
        Worker(
            client, workflows=[BlocksWorkflowThread, PriceOrder], activities=[price], deadlock_timeout=0.2
        ),
    ):
        blocked_run = client.start_workflow(BlocksWorkflowThread.run)
        try:
            while "test_testing_tools.py" not in caplog.text:
                assert client.execute_workflow(PriceOrder.run, True) == ["lamp", 4]
        finally:
            BlocksWorkflowThread.gate.set()
        assert blocked_run.result(timeout=30) == "went on"


def test_replay_moments_contain_frames_and_variables_of_every_coroutine() -> None:
    with Environment() as env:
        run = env.start_workflow(SumsConcurrently.run)
        assert run.result() == 6
        history = run.history()
    with Replayer(workflows=[SumsConcurrently]) as replayer:
        moments, result = replayer.moments(history)
    assert result.ok
    frames = [
        frame for fiber in moments[0].fibers or () for frame in fiber.frames if frame.function == "doubled"
    ]
    assert [frame.values["number"] for frame in frames] == ["1", "2"]


@workflow.defn
class CallsUnservedActivity:
    @workflow.run
    async def run(self) -> str:
        try:
            activity_task = workflow.execute_activity(
                price, "lamp", schedule_to_start_timeout=0.2, start_to_close_timeout=30
            )
            return f"done: {await activity_task}"
        except ActivityError as error:
            return str(error.cause.type.name)  # type: ignore[union-attr]


async def test_worker_with_no_remote_activities_leaves_activities_queued() -> None:
    client = await AioClient.connect("local:")
    async with AioWorker(
        client,
        task_queue="own",
        workflows=[CallsUnservedActivity],
        activities=[price],
        no_remote_activities=True,
    ):
        result = await client.execute_workflow(CallsUnservedActivity.run, id="remote", task_queue="own")
    assert result == "SCHEDULE_TO_START"
