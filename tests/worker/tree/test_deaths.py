"""Any part may die at any instant: its supervisor brings it back, what is in flight goes on, and the queue is served again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hourglass._worker.handles.life import HandleLimits, HandleState

from .test_shape import WHOLE
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
    play,
    slow,
    stage,
    steps,
    until,
    waiting,
)


@pytest.mark.parametrize("path", WHOLE)
async def test_killed_child_is_restarted_and_workflows_run(path):
    """After a kill of any path the tree is complete again, and workflows complete."""
    async with memory() as world:
        former = world.find(path)
        world.kill(path)
        await until(lambda: world.app.tree.root.alive and world.paths() == WHOLE and world.whole())
        assert world.find(path) is not former
        assert await world.run(steps, 1, id="after") == 4


@pytest.mark.parametrize("path", [WORKER, WORKERS, HOLDER, f"{SUBSYSTEM}/WorkerRegistry", SUBSYSTEM])
async def test_attempt_survives_death_of_its_poll_loop(path):
    """The activity continues without another attempt, and the old handle delivers its result."""
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        attempt = world.find(f"{EXECUTORS}/attempt-1")
        world.kill(path)
        await until(world.whole)
        assert attempt.alive
        stage.go.set()
        assert await world.result() == 3
        assert stage.attempts == 1


@pytest.mark.parametrize("path", [WORKER, WORKERS, HOLDER, SUBSYSTEM])
async def test_evaluation_survives_death_of_its_poll_loop(path):
    """The draining handle accepts the completion, and the code is not executed again."""
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        evaluation = world.find(f"{EVALUATORS}/evaluation-1")
        world.kill(path)
        await until(world.whole)
        assert evaluation.alive
        stage.go.set()
        assert await world.result() == 5
        assert stage.evaluations == 1


async def test_completion_between_two_holders_counts():
    """The tables outlive the holder: a completion between its death and its restart counts."""
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        record = world.record()
        (run_id,) = record.runs.open
        evaluation = world.find(f"{EVALUATORS}/evaluation-1")
        stage.go.set()
        (lane, *_) = world.app.configured()[0].lanes._places.lanes()
        await until(lambda: lane.busy is None)  # it is evaluated, its verdict is on its way
        world.kill(HOLDER)
        assert run_id in record.runs.open or not evaluation.alive
        assert await world.result() == 5
        assert world.app.tables.counters.forced_failures == 0


async def test_holder_crash_restarts_later_siblings():
    """rest_for_one: everything after the holder restarts, everything before it does not, and the queue is served again."""
    async with memory() as world:
        runtime = world.find(f"{SUBSYSTEM}/Runtime")
        former = {path: world.find(path) for path in WHOLE[WHOLE.index(HOLDER) :]}
        holder = world.app.holder
        world.kill(HOLDER)
        await until(lambda: world.paths() == WHOLE and world.whole())
        assert world.find(f"{SUBSYSTEM}/Runtime") is runtime
        assert all(world.find(path) is not process for path, process in former.items())
        assert world.app.holder is not holder
        assert world.app.registry.whereis("default") is world.find(WORKER)
        assert await world.run(steps, 1, id="after") == 4


async def test_cascade_restarts_all_configured_queues():
    """The launcher starts every configured queue again, but no stopped queue."""
    async with memory() as world:
        await world.serve("second")
        await world.serve("third")
        await world.app.stop_worker("third")
        world.kill(HOLDER)
        await until(lambda: world.whole("default") and world.whole("second"))
        assert sorted(world.app.registry.names()) == ["default", "second"]
        assert await world.run(steps, 1, id="w", queue="second") == 4


async def test_cascade_lets_activities_finish():
    """The activities of a Worker that will be back have more than the graceful time, which is 0 here."""
    async with memory(graceful_shutdown=0.0, limits=HandleLimits(adoption=0)) as world:
        await world.start(waiting, 1)
        await begun()
        record = world.record()
        world.kill(f"{SUBSYSTEM}/WorkerRegistry")  # the Worker is stopped in order, with its farewell
        await until(lambda: world.whole() and world.record() is not record)
        now = asyncio.get_running_loop().time()
        assert record.state is HandleState.DRAINING
        assert record.drain.deadlines.stop_activities > now + 60
        stage.go.set()
        assert await world.result() == 3


async def test_queue_is_served_before_old_handles_have_drained():
    """The queue is served while old handles still have activities; these handles close later."""
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        world.app.distrust("a test says so")
        await until(lambda: world.whole() and len(world.app.tables.of_queue("default")) == 2)
        assert await world.run(steps, 1, id="meanwhile") == 4
        stage.go.set()
        assert await world.result() == 3
        await until(lambda: len(world.app.tables.of_queue("default")) == 1)


async def test_distrusted_connections_are_replaced():
    """The Runtime crashes, the whole Subsystem restarts, and new handles use new connections."""
    from .world import scripted

    async with scripted() as world:
        assert world.engine.connections == []  # the first handle is on the shared connection
        former = world.handle
        world.app.distrust("a test says so")
        await until(lambda: len(world.engine.handles) == 2 and world.whole())
        assert len(world.engine.connections) == 1
        assert world.engine.connections[0].handles == [world.handle]
        await until(lambda: former.finalized)
        assert world.app.raw.closed == 0  # the client's own connection is not ours to close
        assert "BridgeHolder" in world.app.tree.render()


async def test_too_many_abandoned_handles_replace_connections():
    """After several handles that do not end, the connections are replaced."""
    from worker.handles.scripted import ScriptedHandle

    from .world import scripted

    def deaf(handle: ScriptedHandle) -> None:
        handle.ignores_shutdown = True

    limits = HandleLimits(drain=0.01, max_abandoned=0)
    async with scripted(serve=False, limits=limits) as world:
        world.engine.changes.append(deaf)
        await world.serve()
        runtime = world.find(f"{SUBSYSTEM}/Runtime")
        world.engine.changes.clear()
        await world.app.holder.recycle("default", "a test says so")
        await until(lambda: not runtime.alive and world.whole())
        assert world.app.shared is None


async def test_dead_root_is_restarted():
    """The Application object restarts the root. Work in progress is answered as failed, and continues."""
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        former = world.app.tree
        stage.go.set()
        world.kill("Application")
        assert not former.root.alive
        await until(lambda: world.app.tree is not former and world.whole())
        assert world.paths() == WHOLE
        assert await world.result() == 3
        assert world.app.restarts >= 1


async def test_many_kills_escalate_to_the_root():
    """A child that dies too often ends its supervisor, up to the root; in the end the tree is complete again."""
    async with memory() as world:
        former = world.find(SUBSYSTEM)
        for _ in range(60):
            await until(lambda: world.app.tree.root.alive and f"{SUBSYSTEM}/Runtime" in world.paths())
            world.kill(f"{SUBSYSTEM}/Runtime")
        await until(lambda: world.app.tree.root.alive and world.paths() == WHOLE and world.whole())
        assert not former.alive
        assert await world.run(steps, 1, id="after") == 4


async def test_killed_lane_is_replaced():
    """A lane's process stands for its thread: the workflow task in progress fails and is executed again."""
    async with memory() as world:
        await world.start(slow, 5)
        await begun()
        (services,) = world.app.configured()
        world.kill(f"{LANES}/default:hourglass-lane-1")
        assert services.lanes.status()[0].replaced == 1
        stage.go.set()
        assert await world.result() == 5
        assert stage.evaluations == 2
        assert WHOLE[4] in world.paths()


async def test_item_survives_death_of_its_poll_loop():
    """A poll loop that is killed in the turn in which an item arrives loses nothing."""
    async with memory() as world:
        for number in range(20):
            await world.start(steps, number, id=f"w{number}")
            for loop in ("WorkflowPollLoop", "ActivityPollLoop"):
                if f"{WORKER}/{loop}" in world.paths() and number % 3 == 0:
                    world.kill(f"{WORKER}/{loop}")
                await asyncio.sleep(0)
        for number in range(20):
            assert await world.result(f"w{number}") == number * 4


def test_deaths_are_logged(caplog):
    """The log has the path of the dead child, the reason, and its restart."""
    caplog.set_level(logging.WARNING)

    async def script():
        async with memory() as world:
            world.kill(HOLDER)
            await until(world.whole)

    play(script)
    assert f"{HOLDER} exited (killed)" in caplog.text
    assert f"{HOLDER} restarting" in caplog.text
