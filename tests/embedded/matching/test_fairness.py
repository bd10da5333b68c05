"""Fair dispatch: priorities, fairness keys, types, new tasks and backlogs take turns; the backlog is loaded as it is
served.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice, pairwise
from typing import Any

import pytest
from tests.embedded.stores import memory_store
from tests.polled import PolledEngine

from hourglass._contract.handle import HandleConfig
from hourglass._embedded.clock import RealClock
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching import priority_queue
from hourglass._embedded.matching.priority_queue import PriorityQueue
from hourglass._embedded.runs import upkeep
from hourglass._embedded.store.store import Store
from hourglass._evaluator import commands as c

from ..memory_world import World, run_async, start_waiting

DONE = c.CompleteRun(None)


def take(queue: PriorityQueue[str], count: int) -> list[str]:
    """Take `count` keys one after the other, as a handle does."""
    keys = []
    for _ in range(count):
        key = next(iter(queue))
        queue.drop(key)
        keys.append(key)
    return keys


# --- a queue ------------------------------------------------------------------------------------------------


def test_flood_of_one_type_does_not_delay_other_types() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(1000):
        queue.put(f"flood-{number}", 3, ("", "Flood", ""))
    assert take(queue, 2) == ["flood-0", "flood-1"]
    queue.put("other", 3, ("", "Other", ""))
    assert "other" in take(queue, 2)
    assert take(queue, 2) == ["flood-3", "flood-4"]


def test_fairness_keys_are_served_by_weight() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for tenant, weight in (("a", 0.0), ("b", 2.0), ("c", 1.0)):
        for number in range(100):
            queue.put(f"{tenant}-{number}", 3, (tenant, "", ""), weight=weight)
    keys = take(queue, 40)
    assert Counter(key[0] for key in keys) == {"a": 10, "b": 20, "c": 10}
    for tenant in "abc":
        mine = [int(key[2:]) for key in keys if key[0] == tenant]
        assert mine == sorted(mine)


def test_returning_fairness_key_gets_no_extra_turns() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(300):
        queue.put(f"a-{number}", 3, ("a", "", ""))
    queue.put("b-first", 3, ("b", "", ""))
    take(queue, 100)
    for number in range(10):
        queue.put(f"b-{number}", 3, ("b", "", ""))
    assert Counter(task[0] for task in take(queue, 10)) == {"a": 5, "b": 5}


def test_new_tasks_and_backlog_of_a_type_alternate() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(100):
        queue.put(f"late-{number}", 3, ("", "W", ""), late=True)
    take(queue, 1)
    for number in range(3):
        queue.put(f"new-{number}", 3, ("", "W", ""))
    keys = take(queue, 6)
    assert [key for key in keys if key.startswith("new")] == ["new-0", "new-1", "new-2"]
    assert sum(key.startswith("late") for key in keys) == 3
    assert (queue.late(), len(queue)) == (96, 96)


def test_priority_takes_precedence_over_fairness() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    queue.put("usual", 3, ("a", "", ""))
    queue.put("urgent-0", 1, ("b", "", ""))
    queue.put("urgent-1", 1, ("b", "", ""), late=True)
    assert set(take(queue, 2)) == {"urgent-0", "urgent-1"}
    assert take(queue, 1) == ["usual"]


def test_queue_iteration_yields_each_task_once() -> None:
    """`urgent` omits the backlog and long queues."""
    queue: PriorityQueue[str] = PriorityQueue()
    names = [f"{tenant}-{number}" for tenant in "abc" for number in range(priority_queue.MAX_FRESH + 1)]
    for name in names:
        queue.put(name, 3, (name[0], "", ""), late=name[0] == "b")
    queue.put("d", 3, ("d", "", ""))
    assert sorted(queue) == sorted([*names, "d"])
    assert {task[0] for task in islice(queue, 4)} == set("abcd")
    assert list(queue.urgent()) == ["d"]


def test_task_added_as_new_is_removed_from_the_backlog() -> None:
    queue: PriorityQueue[str] = PriorityQueue()
    queue.put("x", 3, ("", "W", ""), late=True)
    queue.put("x", 3, ("", "W", ""))
    assert (queue.late(), list(queue.urgent()), list(queue)) == (0, ["x"], ["x"])


# --- what is due --------------------------------------------------------------------------------------------


async def store_with_waiting_runs(count: int, **queues: str) -> Store:
    """Return a store in which `count` runs wait on queue `q`, and others on the queues given by workflow id."""
    store = memory_store()
    world = await World.new(store=store)
    world.handle.initiate_shutdown()
    for number in range(count):
        await world.start(f"w-{number}")
    for workflow_id, queue in queues.items():
        await world.start(workflow_id, task_queue=queue)
    world.engine.runs.stop()
    return store


async def open_world(store: Store, **config: Any) -> World:
    clock: Any = RealClock()
    return await World.new(store=store, clock=clock, opened=True, **config)


def loaded_run_count(engine: Engine) -> int:
    return sum(1 for _ in engine.runs.records())


async def test_backlog_is_loaded_as_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory contains only a window of a large backlog."""
    monkeypatch.setattr(upkeep, "WINDOW", 20)
    monkeypatch.setattr(upkeep, "PER_BULK_SLICE", 5)

    world = await open_world(await store_with_waiting_runs(200))
    assert loaded_run_count(world.engine) <= 25
    seen, most = set(), 0
    for _ in range(200):
        activation = await world.activation()
        seen.add(activation.run_id)
        most = max(most, world.engine.queues.late("q"))
        await world.complete(activation.run_id, DONE)
        assert (await world.activation()).run_id == activation.run_id  # its eviction
        await world.complete(activation.run_id)
    assert len(seen) == 200
    assert most <= 25 + 5  # a slice every second comes in any case


async def test_new_workflow_does_not_wait_for_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WINDOW", 50)

    world = await open_world(await store_with_waiting_runs(300))
    for _ in range(3):
        await world.complete((await world.activation()).run_id)
    run_id = (await world.start("new")).run_id
    ahead = 0
    while (activation := await world.activation()).run_id != run_id:
        await world.complete(activation.run_id)
        ahead += 1
    assert ahead <= 3


async def test_queue_without_a_worker_does_not_delay_other_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backlog of the first queue exceeds the window, and a slice of it is loaded every second."""
    monkeypatch.setattr(upkeep, "WINDOW", 10)
    monkeypatch.setattr(upkeep, "PER_BULK_SLICE", 4)

    world = await open_world(await store_with_waiting_runs(100, other="o"), queue="o")
    activation = await world.activation()
    await world.complete(activation.run_id, DONE)
    before = len(world.engine.queues.of("q").tasks)
    assert before <= 14
    for _ in range(3):
        world.engine._upkeep.tick()
    assert len(world.engine.queues.of("q").tasks) == before + 12


async def test_run_is_loaded_from_behind_the_backlog_of_another_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "WINDOW", 10)
    monkeypatch.setattr(upkeep, "PAGE", 20)

    world = await open_world(await store_with_waiting_runs(300, last="o"))
    handle = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="o", identity="other")))
    other = asyncio.create_task(handle.poll_activation())
    served = 0
    while not other.done():
        await world.complete((await world.activation()).run_id, c.StartTimer(1, 10**15))
        await asyncio.sleep(0)  # the other worker has its turns meanwhile
        served += 1
    assert served < 30
    assert world.engine.queue_stats("q", activities=False).backlog > 0


async def test_new_worker_loads_the_remaining_backlog_of_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WINDOW", 10)
    monkeypatch.setattr(upkeep, "PER_SLICE", 4)

    store = await store_with_waiting_runs(60)
    world = await open_world(store, queue="o")
    handle = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="q", identity="later")))
    seen = set()
    for _ in range(60):
        activation = await handle.poll_activation()
        seen.add(activation.run_id)
        await handle.complete_activation(c.Succeeded(activation.run_id, (c.StartTimer(1, 10**15),), ()))
    assert len(seen) == 60


async def test_backlog_waits_while_the_store_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await open_world(await store_with_waiting_runs(20))
    behind = True
    world.engine.queues.is_paced = True
    monkeypatch.setattr(world.engine.writes, "is_behind", lambda: behind)
    run_id = (await world.start("new")).run_id
    poll = asyncio.create_task(world.activation())
    assert (await poll).run_id == run_id
    poll = await start_waiting(world.activation())
    assert not poll.done()
    behind = False
    assert (await poll).run_id != run_id


def test_simultaneous_timers_do_not_block_the_event_loop() -> None:
    async def body() -> None:
        clock, called = RealClock(), 0

        def call() -> None:
            nonlocal called
            called += 1

        for _ in range(1000):
            clock.call_at(0, call)
        seen = []
        while called < 1000:
            await asyncio.sleep(0)
            seen.append(called)
        grown = [after - before for before, after in pairwise(seen)]
        assert max(grown) <= 64

    run_async(body)
