"""Limits in real time on each engine: in memory, on a file, on a Temporal server."""

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

TIMEOUT = 60.0

go = workflow.Channel("go", str)
inside = Progress("inside", str)


class Room:
    """Counts concurrent visits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def visit(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.02)  # long enough to overlap with a visit beyond the limit
        with self.lock:
            self.inside -= 1


room = Room()


@activity.defn
def count() -> int:
    """Return the maximum number of concurrent visits."""
    room.visit()
    return room.most


@workflow.defn
def count_in_slot(key: str) -> int:
    with limits.slot(key, 2):
        return count()


@workflow.defn
def hold_until_signalled(key: str) -> str:
    with limits.slot(key, notice=0.5):
        inside.publish("in")
        return go.receive()


@workflow.defn
def turn(key: str) -> float:
    """Return the time of a turn; two turns per half second."""
    limits.throttle(key, 2, per=0.5)
    return workflow.time()


@workflow.defn
def return_argument(value: int) -> int:
    return value


class LimitsWorld:
    """A client with its own task queue and key."""

    def __init__(self, client: Client, target: str) -> None:
        self.client = client
        self.has_keepers = not target.startswith("local:")
        self.queue = f"limits-{uuid.uuid4().hex[:8]}"
        self.key = f"key-{uuid.uuid4().hex[:8]}"

    def start(self, kind: object) -> WorkflowHandle:  # type: ignore[type-arg]
        return self.client.start_workflow(kind, self.key, task_queue=self.queue)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(params=["memory", "file", "server"])
def target(request: pytest.FixtureRequest, quick_server: DevServer, tmp_path: Path) -> str:
    targets = {"memory": "local:", "file": f"local:{tmp_path / 'limits.db'}", "server": quick_server.target}
    return targets[request.param]


@pytest.fixture
def world(target: str) -> Iterator[LimitsWorld]:
    """Return a world on each engine, with a worker of the author's workflows only."""
    with Client.connect(target) as client:
        world = LimitsWorld(client, target)
        own_workflows = [count_in_slot, hold_until_signalled, turn, return_argument]
        with Worker(client, world.queue, workflows=own_workflows, activities=[count], verify="always"):
            yield world


def replay(world: LimitsWorld, *ids: str) -> None:
    """Check that the histories of these workflows replay."""
    with Replayer(modules=[sys.modules[__name__]]) as replayer:
        for id in ids:
            assert replayer.replay(world.client.get_workflow_handle(id).history()).ok


def test_slots_limit_concurrent_runs_on_each_engine(world: LimitsWorld) -> None:
    room.most = 0
    handles = [world.start(count_in_slot) for _ in range(20)]
    assert all(handle.result(timeout=TIMEOUT) <= 2 for handle in handles)
    kept = [f"hourglass.slots:{world.key}"] if world.has_keepers else []
    replay(world, *kept, *(handle.id for handle in handles))


def test_slot_requests_during_the_keepers_continue_as_new_are_answered(
    world: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_keepers, "_MANY_MESSAGES", 5)
    room.most = 0
    handles = [world.start(count_in_slot) for _ in range(20)]
    assert all(handle.result(timeout=TIMEOUT) <= 2 for handle in handles)
    keeper = world.client.get_workflow_handle(f"hourglass.slots:{world.key}")
    assert is_idle(keeper.query(SlotKeeper.slots))
    assert (
        not world.has_keepers
        or keeper.history().events[0]["workflowExecutionStartedEventAttributes"]["continuedExecutionRunId"]
    )


def test_slot_requests_while_the_keeper_ends_are_answered(
    world: LimitsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_slots, "_LINGER", 0.0)
    room.most = 0
    handles = []
    for _ in range(5):
        handles += [world.start(count_in_slot) for _ in range(4)]
        handles[-1].result(timeout=TIMEOUT)
    assert all(handle.result(timeout=TIMEOUT) <= 2 for handle in handles)


def test_slot_of_a_terminated_run_is_granted_to_the_next_run(world: LimitsWorld) -> None:
    holder = world.start(hold_until_signalled)
    assert next(inside.follow(holder, timeout=TIMEOUT)) == "in"
    waiting = world.start(hold_until_signalled)
    holder.terminate("gone")
    assert next(inside.follow(waiting, timeout=TIMEOUT)) == "in"
    waiting.signal(go, "done")
    assert waiting.result(timeout=TIMEOUT) == "done"


def test_run_cancelled_while_waiting_for_a_slot_is_skipped(world: LimitsWorld) -> None:
    holder = world.start(hold_until_signalled)
    next(inside.follow(holder, timeout=TIMEOUT))
    cancelled, behind = world.start(hold_until_signalled), world.start(hold_until_signalled)
    cancelled.cancel()
    with pytest.raises(WorkflowFailedError):
        cancelled.result(timeout=TIMEOUT)
    holder.signal(go, "first")
    behind.signal(go, "second")
    assert (holder.result(timeout=TIMEOUT), behind.result(timeout=TIMEOUT)) == ("first", "second")


def test_slots_survive_a_worker_restart(target: str) -> None:
    with Client.connect(target) as client:
        world = LimitsWorld(client, target)
        with Worker(client, world.queue, workflows=[hold_until_signalled]):
            holder = world.start(hold_until_signalled)
            next(inside.follow(holder, timeout=TIMEOUT))
            waiting = world.start(hold_until_signalled)
        holder.signal(go, "first")
        waiting.signal(go, "second")
        with Worker(client, world.queue, workflows=[hold_until_signalled]):
            assert (holder.result(timeout=TIMEOUT), waiting.result(timeout=TIMEOUT)) == ("first", "second")


def test_throttled_runs_do_not_continue_before_their_turns(world: LimitsWorld) -> None:
    handles = [world.start(turn) for _ in range(5)]
    moments = [handle.result(timeout=TIMEOUT) for handle in handles]
    keeper = world.client.get_workflow_handle(f"hourglass.throttle:{world.key}")
    given = keeper.query(TurnKeeper.given).given
    assert len(given) == 2
    assert max(moments) >= given[-1].at / 1e6 - 1e-3
    replay(world, *([keeper.id] if world.has_keepers else []), *(handle.id for handle in handles))


def test_debounced_calls_become_one_run_on_each_engine(world: LimitsWorld) -> None:
    calls = [
        limits.debounce(
            world.client, return_argument, number, key=world.key, wait=wait, task_queue=world.queue
        )
        for number, wait in enumerate([TIMEOUT] * 9 + [0.2])
    ]
    assert {call.result() for call in calls} == {9}
    assert len({call.started().id for call in calls}) == 1


def test_no_debounced_call_during_a_run_is_lost(world: LimitsWorld) -> None:
    """Each call gets the result of its own arguments or of later ones."""
    calls = [
        limits.debounce(world.client, return_argument, number, key=world.key, wait=0, task_queue=world.queue)
        for number in range(30)
    ]
    results = [call.result() for call in calls]
    assert all(result >= number for number, result in enumerate(results))
    assert results == sorted(results)
    assert results[-1] == 29


async def test_async_client_awaits_debounce_and_once(target: str) -> None:
    queue = f"limits-{uuid.uuid4().hex[:8]}"
    async with (
        await AsyncClient.connect(target) as client,
        Worker(client, queue, workflows=[return_argument]),
    ):
        calls = [
            await limits.debounce(client, return_argument, number, key=queue, wait=wait, task_queue=queue)
            for number, wait in enumerate([TIMEOUT, TIMEOUT, 0.2])
        ]
        assert [await call.result() for call in calls] == [2, 2, 2]
        first = await limits.once(client, return_argument, 7, key=f"once-{queue}", task_queue=queue)
        again = await limits.once(client, return_argument, 8, key=f"once-{queue}", task_queue=queue)
        assert (await first.result(), await again.result()) == (7, 7)


def test_once_returns_the_run_of_its_key_until_the_window_ends(world: LimitsWorld) -> None:
    def once(value: int, window: float | None = None) -> WorkflowHandle[int]:
        return limits.once(
            world.client, return_argument, value, key=world.key, window=window, task_queue=world.queue
        )

    first = once(1)
    assert first.result(timeout=TIMEOUT) == 1
    assert once(2).run_id == first.run_id
    assert once(2, window=3600).result(timeout=TIMEOUT) == 1
    second = once(3, window=0)
    assert second.run_id != first.run_id
    assert second.result(timeout=TIMEOUT) == 3


def test_concurrent_starts_with_the_same_request_id_start_one_run(world: LimitsWorld) -> None:
    """Calls of `once` after the window use the followed run as request id."""
    first = limits.once(world.client, return_argument, 1, key=world.key, task_queue=world.queue)
    first.result(timeout=TIMEOUT)
    starts = [
        world.client.start_workflow(
            return_argument,
            number,
            id=world.key,
            task_queue=world.queue,
            id_reuse_policy=IdReusePolicy.ALLOW_DUPLICATE,
            request_id=f"after {first.run_id}",
        )
        for number in (2, 3)
    ]
    assert starts[0].result(timeout=TIMEOUT) == 2
    late = world.client.start_workflow(
        return_argument,
        4,
        id=world.key,
        task_queue=world.queue,
        id_reuse_policy=IdReusePolicy.ALLOW_DUPLICATE,
        request_id=f"after {first.run_id}",
    )
    assert {run.run_id for run in (*starts, late)} == {starts[0].run_id}
