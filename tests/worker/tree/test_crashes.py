"""Any part of the tree may die at any time: its supervisor restarts it, and work in progress continues."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hourglass._worker.handles.life import HandleLimits, HandleState

from .test_shape import COMPLETE_TREE
from .world import (
    EVALUATORS,
    EXECUTORS,
    HOLDER,
    LANES,
    SUBSYSTEM,
    WORKER,
    WORKERS,
    begun,
    memory,
    slow,
    stage,
    steps,
    until,
    waiting,
)


@pytest.mark.parametrize("path", COMPLETE_TREE)
async def test_tree_is_restored_and_workflows_run_after_killing_any_child(path):
    async with memory() as world:
        former = world.find(path)
        world.kill(path)
        await until(
            lambda: world.app.tree.root.alive and world.paths() == COMPLETE_TREE and world.is_polling()
        )
        assert world.find(path) is not former
        assert await world.run(steps, 1, id="after") == 4


@pytest.mark.parametrize("path", [WORKER, WORKERS, HOLDER, f"{SUBSYSTEM}/WorkerRegistry", SUBSYSTEM])
async def test_activity_attempt_continues_when_its_poll_loop_or_holder_is_killed(path):
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        attempt = world.find(f"{EXECUTORS}/attempt-1")
        world.kill(path)
        await until(world.is_polling)
        assert attempt.alive
        stage.go.set()
        assert await world.result() == 3
        assert stage.attempts == 1


@pytest.mark.parametrize("path", [WORKER, WORKERS, HOLDER, SUBSYSTEM])
async def test_workflow_evaluation_continues_when_its_poll_loop_or_holder_is_killed(path):
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        evaluation = world.find(f"{EVALUATORS}/evaluation-1")
        world.kill(path)
        await until(world.is_polling)
        assert evaluation.alive
        stage.go.set()
        assert await world.result() == 5
        assert stage.evaluations == 1


async def test_workflow_completion_made_while_the_holder_restarts_is_not_lost():
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        record = world.record()
        (run_id,) = record.runs.open
        evaluation = world.find(f"{EVALUATORS}/evaluation-1")
        stage.go.set()
        (lane, *_) = world.app.configured()[0].lanes._places.lanes()
        await until(lambda: lane.busy is None)  # evaluated; the verdict is not sent yet
        world.kill(HOLDER)
        assert run_id in record.runs.open or not evaluation.alive
        assert await world.result() == 5
        assert world.app.tables.counters.forced_failures == 0


async def test_holder_crash_restarts_only_later_siblings():
    async with memory() as world:
        runtime = world.find(f"{SUBSYSTEM}/Runtime")
        former = {path: world.find(path) for path in COMPLETE_TREE[COMPLETE_TREE.index(HOLDER) :]}
        holder = world.app.holder
        world.kill(HOLDER)
        await until(lambda: world.paths() == COMPLETE_TREE and world.is_polling())
        assert world.find(f"{SUBSYSTEM}/Runtime") is runtime
        assert all(world.find(path) is not process for path, process in former.items())
        assert world.app.holder is not holder
        assert world.app.registry.whereis("default") is world.find(WORKER)
        assert await world.run(steps, 1, id="after") == 4


async def test_holder_crash_restarts_the_workers_of_all_configured_queues():
    async with memory() as world:
        await world.serve("second")
        await world.serve("third")
        await world.app.stop_worker("third")
        world.kill(HOLDER)
        await until(lambda: world.is_polling("default") and world.is_polling("second"))
        assert sorted(world.app.registry.names()) == ["default", "second"]
        assert await world.run(steps, 1, id="w", queue="second") == 4


async def test_registry_crash_lets_activities_finish_beyond_the_graceful_time():
    """The graceful time is 0 here, but it applies only to a worker that does not return."""
    async with memory(graceful_shutdown=0.0, limits=HandleLimits(adoption=0)) as world:
        await world.start(waiting, 1)
        await begun()
        record = world.record()
        world.kill(f"{SUBSYSTEM}/WorkerRegistry")  # stops the Worker in order, which unregisters it
        await until(lambda: world.is_polling() and world.record() is not record)
        now = asyncio.get_running_loop().time()
        assert record.state is HandleState.DRAINING
        assert record.drain.deadlines.stop_activities > now + 60
        stage.go.set()
        assert await world.result() == 3


async def test_queue_is_served_while_old_handles_drain():
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        world.app.distrust("test")
        await until(lambda: world.is_polling() and len(world.app.tables.of_queue("default")) == 2)
        assert await world.run(steps, 1, id="meanwhile") == 4
        stage.go.set()
        assert await world.result() == 3
        await until(lambda: len(world.app.tables.of_queue("default")) == 1)


async def test_distrusted_connections_are_replaced_by_restarting_the_subsystem():
    from .world import scripted

    async with scripted() as world:
        assert world.engine.connections == []  # the first handle is on the shared connection
        former = world.handle
        world.app.distrust("test")
        await until(lambda: len(world.engine.handles) == 2 and world.is_polling())
        assert len(world.engine.connections) == 1
        assert world.engine.connections[0].handles == [world.handle]
        await until(lambda: former.finalized)
        assert world.app.raw.closed == 0  # the client's connection stays open
        assert "BridgeHolder" in world.app.tree.render()


async def test_connections_are_replaced_after_too_many_abandoned_handles():
    from worker.handles.scripted import ScriptedHandle

    from .world import scripted

    def ignore_shutdown(handle: ScriptedHandle) -> None:
        handle.ignores_shutdown = True

    limits = HandleLimits(drain=0.01, max_abandoned=0)
    async with scripted(serve=False, limits=limits) as world:
        world.engine.changes.append(ignore_shutdown)
        await world.serve()
        runtime = world.find(f"{SUBSYSTEM}/Runtime")
        world.engine.changes.clear()
        await world.app.holder.recycle("default", "test")
        await until(lambda: not runtime.alive and world.is_polling())
        assert world.app.shared is None


async def test_killed_root_supervisor_is_restarted_and_workflows_continue():
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        former = world.app.tree
        stage.go.set()
        world.kill("Application")
        assert not former.root.alive
        await until(lambda: world.app.tree is not former and world.is_polling())
        await until(
            lambda: world.paths() == COMPLETE_TREE
        )  # the run's next task may still be a job of the new tree
        assert await world.result() == 3
        assert world.app.restarts >= 1


async def test_repeated_kills_of_a_child_escalate_to_its_supervisors():
    async with memory() as world:
        former = world.find(SUBSYSTEM)
        for _ in range(60):
            await until(lambda: world.app.tree.root.alive and f"{SUBSYSTEM}/Runtime" in world.paths())
            world.kill(f"{SUBSYSTEM}/Runtime")
        await until(
            lambda: world.app.tree.root.alive and world.paths() == COMPLETE_TREE and world.is_polling()
        )
        assert not former.alive
        assert await world.run(steps, 1, id="after") == 4


async def test_workflow_task_on_a_killed_lane_is_retried():
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        (services,) = world.app.configured()
        world.kill(f"{LANES}/default:hourglass-lane-1")
        assert services.lanes.status()[0].replaced == 1
        stage.go.set()
        assert await world.result() == 5
        assert stage.evaluations == 2
        assert COMPLETE_TREE[4] in world.paths()


async def test_killing_poll_loops_as_tasks_arrive_loses_no_workflow():
    async with memory() as world:
        for number in range(20):
            await world.start(steps, number, id=f"w{number}")
            for loop in ("WorkflowPollLoop", "ActivityPollLoop"):
                if f"{WORKER}/{loop}" in world.paths() and number % 3 == 0:
                    world.kill(f"{WORKER}/{loop}")
                await asyncio.sleep(0)
        for number in range(20):
            assert await world.result(f"w{number}") == number * 4


async def test_death_and_restart_of_a_child_are_logged(caplog):
    caplog.set_level(logging.WARNING)
    async with memory() as world:
        world.kill(HOLDER)
        await until(world.is_polling)
    assert f"{HOLDER} exited (killed)" in caplog.text
    assert f"{HOLDER} restarting" in caplog.text
