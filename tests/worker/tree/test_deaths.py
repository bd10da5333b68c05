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
async def test_whoever_dies_is_replaced_and_the_queue_is_served(path):
    """After a kill of any path the tree is whole again by itself, and workflows run to their results."""
    async with memory() as world:
        former = world.find(path)
        world.kill(path)
        await until(lambda: world.app.tree.root.alive and world.paths() == WHOLE and world.whole())
        assert world.find(path) is not former
        assert await world.run(steps, 1, id="after") == 4


@pytest.mark.parametrize("path", [WORKER, WORKERS, HOLDER, f"{SUBSYSTEM}/WorkerRegistry", SUBSYSTEM])
async def test_an_attempt_in_flight_survives_the_death_of_what_polled_it(path):
    """The activity runs on, is not made again, and its result arrives through the old handle."""
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
async def test_an_evaluation_in_flight_survives_the_death_of_what_polled_it(path):
    """Its answer is taken by the handle that it came from, which drains: the code is not executed again."""
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


async def test_an_answer_is_taken_in_the_instant_in_which_there_is_no_holder():
    """The tables outlive the holder: what is answered between its death and its successor counts."""
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


async def test_a_holders_crash_takes_registry_workers_and_launcher_along_and_they_come_back():
    """rest_for_one: everything after the holder is new, what is before it is not, and the queue is served by itself."""
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


async def test_all_queues_are_back_after_a_cascade():
    """The launcher runs again and starts every configured queue, not the stopped ones."""
    async with memory() as world:
        await world.serve("second")
        await world.serve("third")
        await world.app.stop_worker("third")
        world.kill(HOLDER)
        await until(lambda: world.whole("default") and world.whole("second"))
        assert sorted(world.app.registry.names()) == ["default", "second"]
        assert await world.run(steps, 1, id="w", queue="second") == 4


async def test_a_cascade_does_not_cut_activities_short():
    """A worker that will be back gives its activities more than the graceful time of a shutdown, which is 0 here."""
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


async def test_a_cascade_waits_for_no_handle_to_drain():
    """The queue is served again while handles of before still have activities; afterwards they close too."""
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        world.app.distrust("a test says so")
        await until(lambda: world.whole() and len(world.app.tables.of_queue("default")) == 2)
        assert await world.run(steps, 1, id="meanwhile") == 4
        stage.go.set()
        assert await world.result() == 3
        await until(lambda: len(world.app.tables.of_queue("default")) == 1)


async def test_distrust_makes_the_connections_anew():
    """The Runtime crashes, the whole Subsystem follows, and handles stand on fresh connections from then on."""
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


async def test_too_many_abandoned_handles_make_the_connections_anew():
    """What is below the handles is not trusted any more when handle after handle does not end."""
    from worker.handles.scripted import ScriptedHandle

    from .world import scripted

    def deaf(handle: ScriptedHandle) -> None:
        handle.deaf = True

    limits = HandleLimits(drain=0.01, max_abandoned=0)
    async with scripted(serve=False, limits=limits) as world:
        world.engine.changes.append(deaf)
        await world.serve()
        runtime = world.find(f"{SUBSYSTEM}/Runtime")
        world.engine.changes.clear()
        await world.app.holder.recycle("default", "a test says so")
        await until(lambda: not runtime.alive and world.whole())
        assert world.app.shared is None


async def test_the_root_is_planted_again():
    """It has no supervisor; the Application is it. What was in flight is answered as failed, and goes on."""
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


async def test_a_storm_of_kills_gives_up_upwards_and_recovers():
    """A part that dies too often takes its supervisor along, up to the root if need be; the end is a whole tree."""
    async with memory() as world:
        former = world.find(SUBSYSTEM)
        for _ in range(60):
            await until(lambda: world.app.tree.root.alive and f"{SUBSYSTEM}/Runtime" in world.paths())
            world.kill(f"{SUBSYSTEM}/Runtime")
        await until(lambda: world.app.tree.root.alive and world.paths() == WHOLE and world.whole())
        assert not former.alive
        assert await world.run(steps, 1, id="after") == 4


async def test_killing_a_lane_replaces_its_thread():
    """The process in the tree stands for the thread: the run in work fails its task and is executed again."""
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


async def test_a_loops_item_passes_on_when_it_dies():
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


def test_deaths_are_reported(caplog):
    """Who died, why, and that it is restarted is in the log, with its path."""
    caplog.set_level(logging.WARNING)

    async def script():
        async with memory() as world:
            world.kill(HOLDER)
            await until(world.whole)

    play(script)
    assert f"{HOLDER} exited (killed)" in caplog.text
    assert f"{HOLDER} restarting" in caplog.text
