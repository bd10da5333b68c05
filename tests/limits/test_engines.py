"""The limits on each engine, in real time: in memory, in a file, on a Temporal server."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.limits import is_idle

from hourglass import Client, Worker, activity, limits, workflow
from hourglass.client import AsyncClient, IdReusePolicy, WorkflowHandle
from hourglass.errors import WorkflowFailedError
from hourglass.limits import _keepers, _slots
from hourglass.limits._slots import SlotKeeper
from hourglass.limits._throttles import TurnKeeper
from hourglass.progress import Progress
from hourglass.replay import Replayer
from hourglass.testing import DevServer

pytestmark = pytest.mark.server

LIMIT = 60.0

go = workflow.Channel("go", str)
inside = Progress("inside", str)


class Room:
    """Counts who is in it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def visit(self) -> None:
        """Be in it for a moment."""
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.02)  # long enough to meet another one that is inside wrongly
        with self.lock:
            self.inside -= 1


room = Room()


@activity.defn
def count() -> int:
    """Return the maximum number of runs that were in the room at the same time."""
    room.visit()
    return room.most


@workflow.defn
def counted(key: str) -> int:
    """Count inside a slot."""
    with limits.slot(key, 2):
        return count()


@workflow.defn
def held(key: str) -> str:
    """Hold a slot until signalled."""
    with limits.slot(key, notice=0.5):
        inside.publish("in")
        return go.receive()


@workflow.defn
def turn(key: str) -> float:
    """Two at a time in half a second."""
    limits.throttle(key, 2, per=0.5)
    return workflow.time()


@workflow.defn
def last(value: int) -> int:
    """What it was called with."""
    return value


class World:
    """A client, a queue and keys of a test's own."""

    def __init__(self, client: Client, target: str) -> None:
        self.client = client
        self.has_keepers = not target.startswith("local:")
        self.queue = f"limits-{uuid.uuid4().hex[:8]}"
        self.key = f"key-{uuid.uuid4().hex[:8]}"

    def start(self, kind: object) -> WorkflowHandle:  # type: ignore[type-arg]
        """Start a workflow of this key."""
        return self.client.start_workflow(kind, self.key, task_queue=self.queue)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(params=["memory", "file", "server"])
def target(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> str:
    """The target to connect to."""
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'limits.db'}", "server": quick_server.target}
    return targets[request.param]


@pytest.fixture
def world(target: str) -> Iterator[World]:
    """A world on each engine, with a worker that registers only the author's workflows."""
    with Client.connect(target) as client:
        world = World(client, target)
        mine = [counted, held, turn, last]
        with Worker(client, world.queue, workflows=mine, activities=[count], verify="always"):
            yield world


def replay(world: World, *ids: str) -> None:
    """The histories of these workflows fit the code."""
    with Replayer(modules=[sys.modules[__name__]]) as replayer:
        for id in ids:
            assert replayer.replay(world.client.get_workflow_handle(id).history()).ok


def test_slots_limit_concurrent_runs(world: World) -> None:
    """Of twenty runs at most two are in the block at once, and all get there; the histories replay."""
    room.most = 0
    handles = [world.start(counted) for _ in range(20)]
    assert all(handle.result(timeout=LIMIT) <= 2 for handle in handles)
    kept = [f"hourglass.slots:{world.key}"] if world.has_keepers else []
    replay(world, *kept, *(handle.id for handle in handles))


def test_keeper_continues_as_new_under_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that arrive while the keeper continues as new are answered by its next run."""
    monkeypatch.setattr(_keepers, "_MANY_MESSAGES", 5)
    room.most = 0
    handles = [world.start(counted) for _ in range(20)]
    assert all(handle.result(timeout=LIMIT) <= 2 for handle in handles)
    keeper = world.client.get_workflow_handle(f"hourglass.slots:{world.key}")
    assert is_idle(keeper.query(SlotKeeper.slots))
    assert (
        not world.has_keepers
        or keeper.history().events[0]["workflowExecutionStartedEventAttributes"]["continuedExecutionRunId"]
    )


def test_request_while_the_keeper_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request keeps it open, or goes to the next keeper."""
    monkeypatch.setattr(_slots, "_LINGER", 0.0)
    room.most = 0
    handles = []
    for _ in range(5):
        handles += [world.start(counted) for _ in range(4)]
        handles[-1].result(timeout=LIMIT)
    assert all(handle.result(timeout=LIMIT) <= 2 for handle in handles)


def test_slot_of_a_terminated_holder_is_freed(world: World) -> None:
    """The next in the queue enters although the slot was not returned."""
    holder = world.start(held)
    assert next(inside.follow(holder, timeout=LIMIT)) == "in"
    waiting = world.start(held)
    holder.terminate("gone")
    assert next(inside.follow(waiting, timeout=LIMIT)) == "in"
    waiting.signal(go, "done")
    assert waiting.result(timeout=LIMIT) == "done"


def test_cancelled_waiter_gives_up_its_place(world: World) -> None:
    """One in the queue is cancelled; the one behind it enters when the holder leaves."""
    holder = world.start(held)
    next(inside.follow(holder, timeout=LIMIT))
    cancelled, behind = world.start(held), world.start(held)
    cancelled.cancel()
    with pytest.raises(WorkflowFailedError):
        cancelled.result(timeout=LIMIT)
    holder.signal(go, "first")
    behind.signal(go, "second")
    assert (holder.result(timeout=LIMIT), behind.result(timeout=LIMIT)) == ("first", "second")


def test_slots_survive_a_worker_restart(target: str) -> None:
    """The next worker knows the holder and the waiting runs."""
    with Client.connect(target) as client:
        world = World(client, target)
        with Worker(client, world.queue, workflows=[held]):
            holder = world.start(held)
            next(inside.follow(holder, timeout=LIMIT))
            waiting = world.start(held)
        holder.signal(go, "first")
        waiting.signal(go, "second")
        with Worker(client, world.queue, workflows=[held]):
            assert (holder.result(timeout=LIMIT), waiting.result(timeout=LIMIT)) == ("first", "second")


def test_throttle_grants_turns_in_time(world: World) -> None:
    """Five runs get turns, and none continues before its turn."""
    handles = [world.start(turn) for _ in range(5)]
    moments = [handle.result(timeout=LIMIT) for handle in handles]
    keeper = world.client.get_workflow_handle(f"hourglass.throttle:{world.key}")
    given = keeper.query(TurnKeeper.given).given
    assert len(given) == 2
    assert max(moments) >= given[-1].at / 1e6 - 1e-3
    replay(world, *([keeper.id] if world.has_keepers else []), *(handle.id for handle in handles))


def test_burst_becomes_one_run(world: World) -> None:
    """Ten calls in a row are one run, with the last arguments."""
    calls = [
        limits.debounce(world.client, last, number, key=world.key, wait=wait, task_queue=world.queue)
        for number, wait in enumerate([LIMIT] * 9 + [0.2])
    ]
    assert {call.result() for call in calls} == {9}
    assert len({call.started().id for call in calls}) == 1


def test_calls_during_a_run_start_the_next_run(world: World) -> None:
    """Of thirty concurrent calls none is lost: each is run with its own arguments or later ones."""
    calls = [
        limits.debounce(world.client, last, number, key=world.key, wait=0, task_queue=world.queue)
        for number in range(30)
    ]
    results = [call.result() for call in calls]
    assert all(result >= number for number, result in enumerate(results))
    assert results == sorted(results)
    assert results[-1] == 29


async def test_debounce_with_an_asynchronous_client(target: str) -> None:
    """With an asynchronous client the calls are awaited."""

    queue = f"limits-{uuid.uuid4().hex[:8]}"
    async with await AsyncClient.connect(target) as client, Worker(client, queue, workflows=[last]):
        calls = [
            await limits.debounce(client, last, number, key=queue, wait=wait, task_queue=queue)
            for number, wait in enumerate([LIMIT, LIMIT, 0.2])
        ]
        assert [await call.result() for call in calls] == [2, 2, 2]
        first = await limits.once(client, last, 7, key=f"once-{queue}", task_queue=queue)
        again = await limits.once(client, last, 8, key=f"once-{queue}", task_queue=queue)
        assert (await first.result(), await again.result()) == (7, 7)


def test_same_key_is_the_same_run(world: World) -> None:
    """While the run is open and after it has closed; after the window it is started once more."""

    def ask(value: int, window: float | None = None) -> WorkflowHandle[int]:
        return limits.once(world.client, last, value, key=world.key, window=window, task_queue=world.queue)

    first = ask(1)
    assert first.result(timeout=LIMIT) == 1
    assert ask(2).run_id == first.run_id
    assert ask(2, window=3600).result(timeout=LIMIT) == 1
    second = ask(3, window=0)
    assert second.run_id != first.run_id
    assert second.result(timeout=LIMIT) == 3


def test_concurrent_calls_after_the_window_start_one_run(world: World) -> None:
    """Both name the run that they follow: the second start is a repetition of the first."""
    first = limits.once(world.client, last, 1, key=world.key, task_queue=world.queue)
    first.result(timeout=LIMIT)
    starts = [
        world.client.start_workflow(
            last,
            number,
            id=world.key,
            task_queue=world.queue,
            id_reuse_policy=IdReusePolicy.ALLOW_DUPLICATE,
            request_id=f"after {first.run_id}",
        )
        for number in (2, 3)
    ]
    assert starts[0].result(timeout=LIMIT) == 2
    late = world.client.start_workflow(
        last,
        4,
        id=world.key,
        task_queue=world.queue,
        id_reuse_policy=IdReusePolicy.ALLOW_DUPLICATE,
        request_id=f"after {first.run_id}",
    )
    assert {each.run_id for each in (*starts, late)} == {starts[0].run_id}
