"""Task queues are added and removed at start and at run time; starts are rejected, interrupted and repeated."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from hourglass import Client, Worker, workflow
from hourglass._worker.handles.life import HandleLimits, HandleState
from hourglass._worker.tree import processes
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, UsageError
from worker.handles.scripted import ScriptedHandle

from .test_shape import COMPLETE_TREE
from .world import (
    ACTIVITIES,
    HOLDER,
    LANES,
    WORKERS,
    WORKFLOWS,
    begun,
    memory,
    scripted,
    slow,
    stage,
    steps,
    stop_all,
    until,
    waiting,
)


@pytest.fixture
def client():
    with Client.connect("local:") as client:
        yield client


def worker(client, **options) -> Worker:
    return Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES, **options)


# --- at run time ------------------------------------------------------------------------------------------------------


def test_task_queue_is_added_and_removed_at_run_time(client):
    with worker(client) as working:
        for turn in range(2):
            working.start_worker("second")
            assert f"{WORKERS}/second" in working.tree.paths()
            assert client.execute_workflow(steps, 1, id=f"s{turn}", task_queue="second") == 4
            working.stop_worker("second")
            assert not [path for path in working.tree.paths() if "second" in path]
            assert client.execute_workflow(steps, 2, id=f"d{turn}") == 8
        working.stop_worker("never served")


def test_second_worker_of_a_client_on_the_same_queue_is_rejected(client):
    with worker(client) as working, Client.connect("local:") as other:
        with pytest.raises(UsageError, match="already runs a worker on task queue 'default'"):
            worker(client).start()
        with pytest.raises(UsageError, match="already runs"):
            working.start_worker("default")
        with worker(other):
            assert other.execute_workflow(steps, 1, id="w") == 4
        assert client.execute_workflow(steps, 1, id="w") == 4


async def test_second_worker_is_rejected_while_the_first_is_starting():
    gate = asyncio.Event()
    async with scripted(serve=False) as world:
        world.engine.openings.append(gate)
        first = asyncio.ensure_future(world.serve())
        await until(lambda: not world.engine.openings)
        with pytest.raises(UsageError, match="already runs a worker"):
            await world.serve()
        gate.set()
        await first
        assert len(world.engine.handles) == 1


def test_two_clients_have_independent_supervision_trees():
    with (
        Client.connect("local:") as one,
        Client.connect("local:") as two,
        worker(one) as first,
        worker(two) as second,
    ):
        assert first._app is not second._app
        first.tree.kill("Application")
        assert second.tree.paths() == COMPLETE_TREE
        assert two.execute_workflow(steps, 1, id="w") == 4
        assert one.execute_workflow(steps, 2, id="w") == 8
        assert first.statistics().restarts > 0
        assert second.statistics().restarts == 0


def test_workers_of_a_client_share_a_supervision_tree(client):
    with worker(client) as first:
        with worker(client, task_queue="second") as second:
            assert first._app is second._app
        assert first.tree.paths() == COMPLETE_TREE
    with pytest.raises(UsageError, match="not running"):
        first.tree.paths()


def test_application_is_freed_with_its_last_worker():
    client = Client.connect("local:")
    with worker(client) as working:
        app = weakref.ref(working._app)
    client.close()
    del working, client
    gc.collect()
    assert app() is None


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_queue_stopped_while_the_holder_restarts_is_not_started_again():
    async with memory() as world:
        await world.serve("second")
        world.kill(HOLDER)
        await world.app.stop_worker("second")
        await until(world.is_polling)
        assert world.app.tables.of_queue("second") == []
        assert sorted(world.app.registry.names()) == ["default"]
        assert not [path for path in world.paths() if "second" in path]


async def test_worker_stops_immediately_after_its_root_supervisor_was_killed():
    async with memory() as world:
        world.kill("Application")
        await stop_all(world.app)
        assert world.app.idle
        assert world.app.tables.records == {}


async def test_worker_stop_continues_if_its_caller_is_cancelled():
    async with memory(graceful_shutdown=30.0) as world:
        await world.start(waiting, 1)
        await begun()
        stopping = asyncio.ensure_future(world.app.stop_worker("default"))
        await until(lambda: world.record().state is HandleState.DRAINING)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        stage.go.set()
        await until(lambda: world.app.idle)


async def test_activity_that_finishes_during_the_stop_is_not_retried():
    async with memory(graceful_shutdown=30.0) as world:
        await world.start(waiting, 1)
        await begun()
        stopping = asyncio.ensure_future(world.app.stop_worker("default"))
        await until(lambda: world.record().state is HandleState.DRAINING)
        stage.go.set()
        await stopping
        await world.serve()
        assert await world.result() == 3
        assert stage.attempts == 1


async def test_activity_that_outlasts_the_stop_is_retried_by_the_next_worker():
    async with memory(graceful_shutdown=0.01, limits=HandleLimits(cancel_grace=0.01)) as world:
        await world.start(waiting, 1)
        await begun()
        await world.app.stop_worker("default")
        assert not stage.go.is_set()
        stage.go.set()
        await world.serve()
        assert await world.result() == 3
        assert stage.attempts == 2


async def test_workflow_task_on_a_hung_lane_is_retried_by_the_next_worker():
    async with memory(limits=HandleLimits(workflow_grace=0.01)) as world:
        await world.start(slow, 5)
        await begun()
        (services,) = world.app.configured()
        await world.app.stop_worker("default")
        stage.go.set()
        assert await asyncio.to_thread(services.lanes.join, 10)
        await world.serve()
        assert await world.result() == 5
        assert stage.evaluations == 2


async def test_supervision_tree_lists_the_lanes_of_served_queues():
    async with memory() as world:
        await world.serve("second", more={"lanes": 2})
        lanes = {path for path in world.paths() if path.startswith(f"{LANES}/")}
        assert len(lanes) == 3
        world.kill(LANES)
        await until(lambda: {path for path in world.paths() if path.startswith(f"{LANES}/")} == lanes)
        await world.app.stop_worker("second")
        assert [path for path in world.paths() if path.startswith(f"{LANES}/")] == [COMPLETE_TREE[4]]


# --- starting ---------------------------------------------------------------------------------------------------------


def test_worker_can_be_started_again_after_shutdown(client):
    working = worker(client)
    for number in range(3):
        with working:
            working.tree.kill(HOLDER)
            assert client.execute_workflow(steps, number, id=f"w{number}") == number * 4
        assert working.statistics().state == "stopped"
        working.shutdown()


def test_starting_a_running_worker_is_rejected(client):
    with worker(client) as working:
        with pytest.raises(UsageError, match="already running"):
            working.start()
        assert client.execute_workflow(steps, 1, id="w") == 4
    with pytest.raises(UsageError, match="is stopped: start it first"):
        working.start_worker("second")


@pytest.mark.parametrize("error", [NamespaceNotFoundError("no such namespace"), UsageError("refused")])
async def test_worker_start_raises_permanent_errors_and_frees_the_queue(error):
    async with scripted(serve=False) as world:
        world.engine.openings.append(error)
        with pytest.raises(type(error)) as caught:
            await world.serve()
        assert caught.value is error
        assert world.app.idle
        assert world.app.tables.records == {}
        await world.serve()
        await until(world.is_polling)


async def test_worker_start_waits_for_an_unavailable_server():
    async with scripted(serve=False, limits=HandleLimits(first_pause=0.001)) as world:
        world.engine.openings.extend([ConnectionFailedError("not yet", status="UNAVAILABLE")] * 3)
        await world.serve()
        await until(world.is_polling)


async def test_worker_start_continues_after_its_supervisors_are_killed():
    async with scripted(serve=False) as world:
        gate = asyncio.Event()
        world.engine.openings.extend([gate, gate, gate, gate])
        serving = asyncio.ensure_future(world.serve())
        for number, path in enumerate((HOLDER, WORKERS, "Application"), 1):
            await until(lambda opened=number: len(world.engine.openings) == 4 - opened)
            world.kill(path)
        await until(lambda: not world.engine.openings)
        gate.set()
        await serving
        await until(world.is_polling)


async def test_handle_that_opens_after_a_cancelled_start_is_shut_down():
    async with scripted(serve=False) as world:
        gate = asyncio.Event()
        world.engine.openings.append(gate)
        serving = asyncio.ensure_future(world.serve())
        await until(lambda: not world.engine.openings)
        serving.cancel()
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await until(lambda: world.app.idle)
        assert all(handle.finalized for handle in world.engine.handles)


async def test_worker_start_cancelled_after_its_handle_opened_leaves_no_handle(monkeypatch):
    async with scripted(serve=False) as world:
        is_open = asyncio.Event()

        async def show_lanes(*_):
            is_open.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(processes, "show_lanes", show_lanes)
        serving = asyncio.ensure_future(world.serve())
        await is_open.wait()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert world.app.idle
        assert all(handle.finalized for handle in world.engine.handles)


async def test_shutdown_ends_a_worker_start_with_an_error():
    async def _later(gate: asyncio.Event) -> None:
        gate.set()

    async with scripted(serve=False) as world:
        gate = asyncio.Event()
        world.engine.openings.append(gate)
        serving = asyncio.ensure_future(world.serve())
        await until(lambda: not world.engine.openings)
        stopping = asyncio.ensure_future(world.app.stop_worker("default"))
        with pytest.raises(UsageError, match="was shut down while it was starting"):
            await asyncio.gather(serving, _later(gate))
        await stopping
        assert world.app.idle


def test_worker_run_returns_if_it_is_shut_down_before_the_server_responds():
    silent = _UnresponsiveConnection()
    with silent, Client.connect("local:") as client:
        working = worker(client)
        client._session.link.opened = silent.opened  # type: ignore[method-assign]
        thread = threading.Thread(target=working.run)
        thread.start()
        assert silent.asked.wait(60)
        working.shutdown()
        thread.join(10)
        assert not thread.is_alive()
        assert working.statistics().state == "stopped"


class _UnresponsiveConnection:
    """A connection that never opens."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.tasks: list[asyncio.Task[object]] = []

    async def opened(self):
        task = asyncio.current_task()
        assert task is not None
        self.tasks.append(task)
        self.asked.set()
        await asyncio.get_running_loop().create_future()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        for task in self.tasks:
            task.get_loop().call_soon_threadsafe(task.cancel)


# --- misbehaving handles, through the whole tree ----------------------------------------------------------------------


async def test_broken_poll_opens_a_new_handle_without_restarting_a_child():
    async with scripted() as world:
        before = {path: world.find(path) for path in world.paths()}
        world.handle.break_poll("workflow", RuntimeError("fatal"))
        await until(lambda: len(world.engine.handles) == 2 and world.is_polling())
        assert {path: world.find(path) for path in world.paths()} == before


async def test_unexpected_handle_shutdown_opens_a_new_handle():
    async with scripted() as world:
        world.handle.initiate_shutdown()
        await until(lambda: len(world.engine.handles) == 2 and world.is_polling())


async def test_supervision_tree_survives_handles_that_break_repeatedly():
    def broken(handle: ScriptedHandle) -> None:
        handle.break_poll("workflow", RuntimeError("fatal"))

    async with scripted(serve=False, limits=HandleLimits(first_pause=0.001, longest_pause=0.004)) as world:
        world.engine.changes.append(broken)
        await world.serve()
        await until(lambda: len(world.engine.handles) > 10)
        world.engine.changes.clear()
        await until(world.is_polling)
        assert world.app.restarts == 0


# --- figures ----------------------------------------------------------------------------------------------------------


@workflow.defn
def parks() -> None:
    raise KeyError("a bug")


def test_worker_statistics_count_activations_activities_and_restarts(client):
    with Worker(client, workflows=[*WORKFLOWS, parks], activities=ACTIVITIES) as working:
        assert client.execute_workflow(steps, 1, id="w") == 4
        after = working.statistics()
        assert after.state == "running"
        assert after.activations >= 3
        assert (after.failed_tasks, after.restarts, after.stuck_lanes) == (0, 0, 0)
        client.start_workflow(waiting, 1, id="v")
        assert stage.begun.wait(60)
        assert working.statistics().running_activities == 1
        client.start_workflow(parks, id="p")
        while not working.statistics().parked:
            time.sleep(0)
        working.tree.kill(HOLDER)
        while not working.statistics().restarts:
            time.sleep(0)
        stage.go.set()
        client.get_workflow_handle("p").terminate("enough")
    ended = working.statistics()
    assert (ended.state, ended.activations) == ("stopped", 0)
