"""Random hangs, kills and deaths among many runs on several lanes, and a hang on a real engine."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.polled import Polled
from tests.specs import made
from tests.worker.activities.executing import AwaitedExecutor

from hourglass import activity, workflow
from hourglass._contract.handle import ActivityTask, HandleConfig, Shutdown
from hourglass._contract.workflows import StartWorkflow, StillOpen, WaitForClose
from hourglass._embedded import connect_memory
from hourglass._evaluator.commands import ScheduleActivity, Succeeded, TaskFailed
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.events import Activation
from hourglass._worker.lanes.evaluation import LaneContext
from hourglass._worker.lanes.lanes import LaneSet
from hourglass._worker.resolver import Resolver
from hourglass.converter import default_converter

from ..scripted import evict, on, payloads, settled, start
from ..scripted import workflow as plain_workflow
from .lane_world import INTERVAL, Clock, LaneWorld, completed, done, failure_kind, lanes, stage, step

STEPS = 4
planned: dict[tuple[str, int], str] = {}
"""Faults by run and step; each happens once, before the step."""


@plain_workflow
def random_hangs(name: str) -> int:
    total = 0
    for n in range(STEPS):
        match planned.pop((name, n), ""):
            case "spin":
                stage.enter(name)
                while stage.hang:
                    pass
            case "block":
                stage.enter(name)
                stage.go.wait()
        total = total * 3 + step(n)
    return total


async def drive(world: LaneWorld, name: str) -> int:
    """Act as the engine for one run: after a failed task replay it from the start. Return the number of failed tasks."""
    activations: list[Any] = [start(name, "random_hangs", name)]
    failures = 0
    for n in range(STEPS + 1):
        while True:
            answer = await world.evaluate(activations[-1])
            if isinstance(answer, Succeeded):
                break
            failures += 1
            assert failure_kind(answer) in ("WorkflowHung", "LaneKilled", "RunNotCached", "LaneDied")
            assert await world.evaluate(evict(name)) == Succeeded(name)
            for activation in activations[:-1]:
                verdict = await world.evaluate(activation)
                if isinstance(verdict, TaskFailed):
                    failures += 1
                    break
        if n < STEPS:
            (scheduled,) = answer.commands
            assert isinstance(scheduled, ScheduleActivity)
            assert scheduled.seq == n + 1
            activations.append(on(name, done(n + 1, n + 1)))
        else:
            assert answer == completed(name, ((1 * 3 + 2) * 3 + 3) * 3 + 4)
    assert await world.evaluate(evict(name)) == Succeeded(name)
    return failures


@pytest.mark.parametrize("seed", range(5))
async def test_random_hangs_and_kills_do_not_affect_other_runs(seed):
    """Every activation is answered once and every result is correct."""
    rng = random.Random(seed)
    names = [f"r{n}" for n in range(50)]
    planned.clear()
    for name in rng.sample(names, 8):
        planned[name, rng.randrange(STEPS)] = rng.choice(["spin", "spin", "block"])
    submitted = 0

    async with lanes(count=3, workflows=[random_hangs]) as world:
        submit = world.submit

        def counted(activation, **options):
            nonlocal submitted
            submitted += 1
            submit(activation, **options)

        world.submit = counted
        drivers = [asyncio.ensure_future(drive(world, name)) for name in names]
        kills = 0
        while not all(driver.done() for driver in drivers):
            if kills < 5 and rng.random() < 0.02:
                kills += 1
                world.lanes.kill(rng.choice(world.lanes.names()))
            if rng.random() < 0.1 and stage.begun:
                world.advance(INTERVAL)
            if rng.random() < 0.1 and stage.begun:
                world.clock.now += 0.05
                world.lanes.check()
            await asyncio.sleep(0)
        for driver in drivers:
            driver.result()
        assert len(world.verdicts) == submitted
        assert world.replaced
        assert not planned
        # A replaced lane may still have to process its last evictions.
        await settled(lambda: {(lane.runs, lane.queued) for lane in world.lanes.status()} == {(0, 0)})


# --- through the memory engine ---------------------------------------------------------------------------------------

hangs_left: list[int] = [0]


@activity.defn
def double(number: int) -> int:
    return number * 2


@activity.defn
def gate(number: int) -> int:
    assert stage.go.wait(30)
    return number


@workflow.defn
def waits_at_a_gate(number: int) -> int:
    return double(gate(double(number)))


@workflow.defn
def hangs_once(number: int) -> int:
    first = double(number)
    if hangs_left[0]:
        hangs_left[0] -= 1
        stage.enter("once")
        while stage.hang:
            pass
    return double(first)


async def _serve_workflows(handle: Polled, lanes: LaneSet) -> None:
    """A poll loop without supervision, until the handle has shut down."""
    sending = []
    while True:
        try:
            task = await handle.poll_activation()
        except Shutdown:
            break
        sending.append(asyncio.ensure_future(_evaluate(handle, lanes, task)))
    await asyncio.gather(*sending)


async def _evaluate(handle: Polled, lanes: LaneSet, task: Activation) -> None:
    answer = asyncio.get_running_loop().create_future()
    lanes.submit(task, answer.set_result)
    await handle.complete_activation((await answer).completion)


async def _serve_activities(handle: Polled, executor: AwaitedExecutor) -> None:
    async def execute(task: ActivityTask) -> None:
        await handle.complete_activity(await executor.execute(task))

    running = []
    while True:
        try:
            task = await handle.poll_activity()
        except Shutdown:
            break
        assert isinstance(task, ActivityTask)
        running.append(asyncio.ensure_future(execute(task)))
    await asyncio.gather(*running)


def test_hung_run_on_a_real_engine_is_retried_and_other_runs_complete():
    hangs_left[0] = 1
    stage.__init__()  # type: ignore[misc]

    async def main():
        clock = Clock()
        connection = await connect_memory(identity="test")
        handle = Polled(await connection.open_handle(HandleConfig(task_queue="q", identity="test")))
        resolver = Resolver(workflows=[waits_at_a_gate, hangs_once], activities=[double, gate])
        settings = RunSettings(task_queue="q")
        lanes = LaneSet(LaneContext(resolver.workflow, settings, verify="always"), ["lane-0"], clock=clock)
        executor = AwaitedExecutor(resolver, default_converter, handle.heartbeat, max_threads=30)
        worker = asyncio.gather(_serve_workflows(handle, lanes), _serve_activities(handle, executor))
        lanes.start()
        names = {f"w{n}": ("waits_at_a_gate", n) for n in range(20)} | {"hung": ("hangs_once", 100)}
        for name, (kind_, number) in names.items():
            request = made(
                StartWorkflow,
                workflow_id=name,
                workflow_type=kind_,
                task_queue="q",
                request_id=name,
                arguments=payloads(number),
            )
            await connection.call(request)
        await settled(lambda: "once" in stage.begun)
        for _ in range(6):
            clock.now += INTERVAL
            lanes.check()
        assert lanes.status()[0].replaced == 1
        stage.go.set()
        results = {}
        for name in names:
            results[name] = StillOpen()
            while isinstance(results[name], StillOpen):
                results[name] = await connection.call(WaitForClose(workflow_id=name))
        handle.initiate_shutdown()
        await worker
        await handle.finalize()
        lanes.stop()
        executor.stop()
        assert await asyncio.to_thread(lanes.join, 10)
        return results, lanes.status()[0].replaced

    async def limited():
        async with asyncio.timeout(40):
            return await main()

    results, replaced = asyncio.run(limited())
    assert replaced == 1
    assert results["hung"].result == payloads(400)
    assert [results[f"w{n}"].result for n in range(20)] == [payloads(n * 4) for n in range(20)]
