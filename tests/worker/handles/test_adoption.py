"""A worker that dies and registers again soon adopts its old handle; any other worker gets a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hourglass._contract.handle import ActivityOk, HandleBroken, Shutdown

from .scripted import (
    Q,
    Worker,
    World,
    activation,
    attempt,
    complete,
    dispatch,
    done,
    raises_stale,
    receive_activation,
    start_poll,
    start_polls,
)
from .virtual_loop import settle

LoseWorker = Callable[[World], Awaitable[None]]


async def dies(world: World) -> None:
    """End the worker without unregistering it."""
    world.worker.die()
    world.worker = Worker()


async def unregisters_temporarily(world: World) -> None:
    """Unregister the worker and announce that it will register again."""
    await world.holder.unregister_worker(Q, returns=True)


EVERY_LOSS = pytest.mark.parametrize(
    "lose",
    [dies, unregisters_temporarily, World.crash],
    ids=["worker dies", "worker unregisters", "holder crashes"],
)


@EVERY_LOSS
async def test_restarted_worker_adopts_its_handle_and_the_tasks_kept_for_it(lose: LoseWorker) -> None:
    world = await World.started(shared=True)
    polling = await start_poll(world)
    await lose(world)
    assert not world.is_served()
    with pytest.raises(Exception, match=r"unregistered|failed|restarted"):
        await polling
    world.handle.deliver(activation())
    await asyncio.sleep(2)
    await world.register()
    ticket = await receive_activation(world.holder)
    assert (ticket.generation, ticket.item.run_id) == (1, "run-1")
    assert "shutdown" not in world.handle.log
    assert (len(world.engine.handles), world.counters.adopted, world.handle.cancelled) == (1, 1, 0)
    await asyncio.sleep(60)
    assert world.states() == ["active"]


@EVERY_LOSS
async def test_adopted_handle_accepts_completions_of_tasks_received_before(lose: LoseWorker) -> None:
    world = await World.started()
    ticket, _ = await dispatch(world, activation(), attempt())
    await lose(world)
    await complete(world.holder, ticket, done())
    await world.register()
    await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))
    with raises_stale():
        await complete(world.holder, ticket, done())
    assert (world.handle.completions, world.handle.results) == ([done()], [ActivityOk(b"a-1")])


async def test_adopted_handle_delivers_kept_tasks_with_a_new_token() -> None:
    world = await World.started()
    polling = await start_poll(world)
    await dies(world)
    await asyncio.gather(polling, return_exceptions=True)
    world.handle.deliver_while_paused(activation())
    await settle()
    (kept,) = world.tables.records[1].runs.open.values()
    await world.register()
    ticket = await receive_activation(world.holder)
    assert ticket.item is kept.item
    with raises_stale():
        await world.holder.complete_activation(Q, 1, kept.token, done())
    await complete(world.holder, ticket, done())


async def test_handle_that_is_not_adopted_in_time_is_drained() -> None:
    world = await World.started()
    await dies(world)
    await asyncio.sleep(4.9)
    assert not world.handle.closing
    await asyncio.sleep(0.2)
    assert world.handle.finalized == 1
    await world.register()
    assert (len(world.engine.handles), world.counters.adopted) == (2, 0)


async def test_unregistering_shuts_down_a_handle_that_waits_for_adoption() -> None:
    world = await World.started()
    await dies(world)
    assert world.handle.log == []
    await world.holder.unregister_worker(Q)
    assert world.handle.log[0] == "shutdown"
    await world.register()
    assert world.states()[-1] == "active"
    assert len(world.engine.handles) == 2
    with pytest.raises(Shutdown):
        await unregister_and_receive(world)
    await world.holder.stop()
    assert [handle.finalized for handle in world.engine.handles] == [1, 1]


async def unregister_and_receive(world: World) -> None:
    await world.holder.unregister_worker(Q)
    await receive_activation(world.holder)


async def test_handle_with_another_configuration_is_not_adopted() -> None:
    world = await World.started()
    await dies(world)
    await world.register(max_cached_workflows=7)
    assert [handle.closing for handle in world.engine.handles] == [True, False]


@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_handle_that_breaks_while_waiting_is_not_adopted(kind: str) -> None:
    world = await World.started()
    polls = await start_polls(world)
    await dies(world)
    await asyncio.gather(*polls, return_exceptions=True)
    world.handle.break_poll(kind, HandleBroken("gone"))
    await settle()
    assert world.handle.closing
    await world.register()
    assert (len(world.engine.handles), world.counters.adopted) == (2, 0)


@EVERY_LOSS
async def test_handle_is_not_adopted_after_its_connections_were_replaced(lose: LoseWorker) -> None:
    world = await World.started()
    world.tables.distrust()
    await lose(world)
    assert world.handle.closing
    await world.register()
    assert len(world.engine.handles) == 2


async def test_recycle_of_an_adopted_handle_opens_a_new_connection() -> None:
    world = await World.started(shared=True)
    await dies(world)
    await world.register()
    await world.holder.recycle(Q, "test")
    assert len(world.engine.connections) == 1
    assert [handle.closing for handle in world.engine.handles] == [True, False]
    await dies(world)
    await world.register()
    assert (world.counters.adopted, world.generation) == (2, 2)


async def test_handle_can_be_adopted_repeatedly() -> None:
    world = await World.started()
    for _ in range(5):
        await dies(world)
        await asyncio.sleep(4)
        await world.register()
    assert world.counters.adopted == 5
    assert len(world.engine.handles) == 1
    await dies(world)
    await world.crash()
    await asyncio.sleep(4)
    assert world.states() == ["active"]
    await asyncio.sleep(2)
    assert world.states() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
