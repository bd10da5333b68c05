"""However much of one kind waits, what else there is comes soon: between priorities, fairness keys, types, new work and
backlogs; and what is due comes into memory as it is served.
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

from ..memory_world import World, run_async, settle

DONE = c.CompleteRun(None)


def taken(queue: PriorityQueue[str], count: int) -> list[str]:
    """What a handle takes, one after the other."""
    found = []
    for _ in range(count):
        key = next(iter(queue))
        queue.drop(key)
        found.append(key)
    return found


# --- a queue ------------------------------------------------------------------------------------------------


def test_flood_of_one_type_does_not_delay_others() -> None:
    """Behind a thousand of one type comes one of another: it is the next but one."""
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(1000):
        queue.put(f"flood-{number}", 3, ("", "Flood", ""))
    assert taken(queue, 2) == ["flood-0", "flood-1"]
    queue.put("other", 3, ("", "Other", ""))
    assert "other" in taken(queue, 2)
    assert taken(queue, 2) == ["flood-3", "flood-4"]


def test_fairness_keys_take_turns_by_weight() -> None:
    """Three tenants with many each, one of weight 2: it has half of the turns, the others a quarter each; each in order."""
    queue: PriorityQueue[str] = PriorityQueue()
    for tenant, weight in (("a", 0.0), ("b", 2.0), ("c", 1.0)):
        for number in range(100):
            queue.put(f"{tenant}-{number}", 3, (tenant, "", ""), weight=weight)
    found = taken(queue, 40)
    assert Counter(each[0] for each in found) == {"a": 10, "b": 20, "c": 10}
    for tenant in "abc":
        mine = [int(each[2:]) for each in found if each[0] == tenant]
        assert mine == sorted(mine)


def test_late_fairness_key_does_not_catch_up() -> None:
    """A sharer that was away begins where the others are: it is not served alone until it has caught up."""
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(300):
        queue.put(f"a-{number}", 3, ("a", "", ""))
    queue.put("b-first", 3, ("b", "", ""))
    taken(queue, 100)
    for number in range(10):
        queue.put(f"b-{number}", 3, ("b", "", ""))
    assert Counter(each[0] for each in taken(queue, 10)) == {"a": 5, "b": 5}


def test_new_tasks_and_backlog_alternate_within_a_type() -> None:
    """Of one type a hundred are late already; a new one is the next but one, and the late ones go on, too."""
    queue: PriorityQueue[str] = PriorityQueue()
    for number in range(100):
        queue.put(f"late-{number}", 3, ("", "W", ""), late=True)
    taken(queue, 1)
    for number in range(3):
        queue.put(f"new-{number}", 3, ("", "W", ""))
    found = taken(queue, 6)
    assert [each for each in found if each.startswith("new")] == ["new-0", "new-1", "new-2"]
    assert sum(each.startswith("late") for each in found) == 3
    assert (queue.late(), len(queue)) == (96, 96)


def test_priority_comes_before_fairness() -> None:
    """What is more urgent comes first, all of it, whosever it is."""
    queue: PriorityQueue[str] = PriorityQueue()
    queue.put("usual", 3, ("a", "", ""))
    queue.put("urgent-0", 1, ("b", "", ""))
    queue.put("urgent-1", 1, ("b", "", ""), late=True)
    assert set(taken(queue, 2)) == {"urgent-0", "urgent-1"}
    assert taken(queue, 1) == ["usual"]


def test_iteration_yields_each_task_once() -> None:
    """Iterating gives each once; `urgent` leaves out what is late and what stands in a long line."""
    queue: PriorityQueue[str] = PriorityQueue()
    names = [f"{tenant}-{number}" for tenant in "abc" for number in range(priority_queue.MANY + 1)]
    for name in names:
        queue.put(name, 3, (name[0], "", ""), late=name[0] == "b")
    queue.put("d", 3, ("d", "", ""))
    assert sorted(queue) == sorted([*names, "d"])
    assert {each[0] for each in islice(queue, 4)} == set("abcd")
    assert list(queue.urgent()) == ["d"]


def test_task_requested_by_a_client_is_no_longer_late() -> None:
    """Put again as new work it waits as such, and at its place no more."""
    queue: PriorityQueue[str] = PriorityQueue()
    queue.put("x", 3, ("", "W", ""), late=True)
    queue.put("x", 3, ("", "W", ""))
    assert (queue.late(), list(queue.urgent()), list(queue)) == (0, ["x"], ["x"])


# --- what is due --------------------------------------------------------------------------------------------


async def filled(count: int, **queues: str) -> Store:
    """A store in which so many runs wait for a worker, on queue `q` or on those that are given by workflow id."""
    store = memory_store()
    world = await World.new(store=store)
    world.handle.initiate_shutdown()
    for number in range(count):
        await world.start(f"w-{number}")
    for workflow_id, queue in queues.items():
        await world.start(workflow_id, task_queue=queue)
    world.engine.runs.stop()
    return store


async def opened(store: Store, **config: Any) -> World:
    clock: Any = RealClock()
    return await World.new(store=store, clock=clock, opened=True, **config)


def brought_in(engine: Engine) -> int:
    return sum(1 for _ in engine.runs.records())


async def test_backlog_is_loaded_as_it_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many runs that wait when the file is opened a window is in memory; the others follow as workers take them, and none
    is forgotten.
    """
    monkeypatch.setattr(upkeep, "WINDOW", 20)
    monkeypatch.setattr(upkeep, "SOME", 5)

    world = await opened(await filled(200))
    assert brought_in(world.engine) <= 25
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
    await world.close()


async def test_new_workflow_does_not_wait_for_the_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """While hundreds wait, a new workflow of the same type on the same queue is given to a worker among the next few."""
    monkeypatch.setattr(upkeep, "WINDOW", 50)

    world = await opened(await filled(300))
    for _ in range(3):
        await world.complete((await world.activation()).run_id)
    run_id = (await world.start("new")).run_id
    ahead = 0
    while (activation := await world.activation()).run_id != run_id:
        await world.complete(activation.run_id)
        ahead += 1
    assert ahead <= 3
    await world.close()


async def test_queue_without_a_worker_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """More wait on a queue that no worker serves than may come at a time: what waits on another comes all the same, and of the
    first some more come with every second.
    """
    monkeypatch.setattr(upkeep, "WINDOW", 10)
    monkeypatch.setattr(upkeep, "SOME", 4)

    world = await opened(await filled(100, other="o"), queue="o")
    activation = await world.activation()
    await world.complete(activation.run_id, DONE)
    before = len(world.engine.queues.of("q").tasks)
    assert before <= 14
    for _ in range(3):
        world.engine._upkeep.tick()
    assert len(world.engine.queues.of("q").tasks) == before + 12
    await world.close()


async def test_due_run_is_found_behind_a_backlog_of_another_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of another queue stands in the store behind many that are served one after the other: it does not wait for them."""
    monkeypatch.setattr(upkeep, "WINDOW", 10)
    monkeypatch.setattr(upkeep, "PAGE", 20)

    world = await opened(await filled(300, last="o"))
    handle = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="o", identity="other")))
    other = asyncio.create_task(handle.poll_activation())
    served = 0
    while not other.done():
        await world.complete((await world.activation()).run_id, c.StartTimer(1, 10**15))
        await asyncio.sleep(0)  # the other worker has its turns meanwhile
        served += 1
    assert served < 30
    assert world.engine.queue_stats("q", activities=False).backlog > 0
    await world.close()


async def test_new_worker_loads_the_rest_of_its_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a worker begins to serve a queue, what waits for it in the store is brought in for it."""
    monkeypatch.setattr(upkeep, "WINDOW", 10)
    monkeypatch.setattr(upkeep, "FEW", 4)

    store = await filled(60)
    world = await opened(store, queue="o")
    handle = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="q", identity="later")))
    seen = set()
    for _ in range(60):
        activation = await handle.poll_activation()
        seen.add(activation.run_id)
        await handle.complete_activation(c.Succeeded(activation.run_id, (c.StartTimer(1, 10**15),), ()))
    assert len(seen) == 60
    await world.close()


async def test_late_tasks_wait_while_the_store_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the store is behind, a worker is given new work and nothing of the backlog; then both."""
    world = await opened(await filled(20))
    behind = True
    world.engine.queues.is_paced = True
    monkeypatch.setattr(world.engine.writes, "is_behind", lambda: behind)
    run_id = (await world.start("new")).run_id
    poll = asyncio.create_task(world.activation())
    assert (await poll).run_id == run_id
    poll = asyncio.create_task(world.activation())
    await settle()
    assert not poll.done()
    behind = False
    assert (await poll).run_id != run_id
    await world.close()


def test_simultaneous_timers_let_others_run() -> None:
    """A thousand callbacks are due at once: what else waits on the loop runs after a few of them, not after all."""

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
