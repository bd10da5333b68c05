"""A worker that dies and comes back soon finds its handle as it left it; everybody else gets a fresh one."""

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
    done,
    refused_as_stale,
    take_activation,
    take_activity,
)
from .virtual_loop import settle

Loss = Callable[[World], Awaitable[None]]


async def dies(world: World) -> None:
    """The worker, without its farewell."""
    world.worker.die()
    world.worker = Worker()


async def returns(world: World) -> None:
    """The worker says farewell, and that it will be back."""
    await world.holder.unregister_worker(Q, returns=True)


async def holder_crashes(world: World) -> None:
    """The holder is gone without a word; another begins on the same tables."""
    world.holder = world.new_holder()
    await world.holder.start()


LOSSES = pytest.mark.parametrize("lose", [dies, returns, holder_crashes])


@LOSSES
async def test_restarted_worker_adopts_its_handle(lose: Loss) -> None:
    """The handle is not shut down, its generation stays, and items that arrive meanwhile are kept for the restarted worker."""
    world = await World.started(shared=True)
    polling = asyncio.ensure_future(take_activation(world.holder))
    await settle()
    await lose(world)
    assert not world.is_served()
    with pytest.raises(Exception, match=r"unregistered|died|restarted"):
        await polling
    world.handle.give(activation())
    await asyncio.sleep(2)
    await world.register()
    ticket = await take_activation(world.holder)
    assert (ticket.generation, ticket.item.run_id) == (1, "run-1")
    assert "shutdown" not in world.handle.log
    assert (len(world.engine.handles), world.counters.adopted, world.handle.cancelled) == (1, 1, 0)
    await asyncio.sleep(60)
    assert world.states() == ["active"]
    await world.holder.stop()


@LOSSES
async def test_adopted_handle_accepts_earlier_completions(lose: Loss) -> None:
    """Before and after the restart of the worker; a second completion is stale."""
    world = await World.started()
    world.handle.give(activation())
    world.handle.give(attempt())
    ticket = await take_activation(world.holder)
    await take_activity(world.holder)
    await lose(world)
    await complete(world.holder, ticket, done())
    await world.register()
    await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))
    with refused_as_stale():
        await complete(world.holder, ticket, done())
    assert (world.handle.completions, world.handle.results) == ([done()], [ActivityOk(b"a-1")])
    await world.holder.stop()


async def test_adopted_handle_delivers_kept_items() -> None:
    """Kept items have a token of their own, which is void after they are dispatched."""
    world = await World.started()
    polling = asyncio.ensure_future(take_activation(world.holder))
    await settle()
    await dies(world)
    await asyncio.gather(polling, return_exceptions=True)
    world.handle.bring(activation())
    await settle()
    (kept,) = world.tables.records[1].runs.open.values()
    await world.register()
    ticket = await take_activation(world.holder)
    assert ticket.item is kept.item
    with refused_as_stale():
        await world.holder.complete_activation(Q, 1, kept.token, done())
    await complete(world.holder, ticket, done())
    await world.holder.stop()


async def test_unadopted_handle_is_drained() -> None:
    """The handle waits until its limit and then drains; the next worker gets a new one."""
    world = await World.started()
    await dies(world)
    await asyncio.sleep(4.9)
    assert not world.handle.closing
    await asyncio.sleep(0.2)
    assert world.handle.finalized == 1
    await world.register()
    assert (len(world.engine.handles), world.counters.adopted) == (2, 0)
    await world.holder.stop()


async def test_unregistering_closes_a_waiting_handle() -> None:
    """At once, also if the handle waits for a worker that died."""
    world = await World.started()
    await dies(world)
    assert world.handle.log == []
    await world.holder.unregister_worker(Q)
    assert world.handle.log[0] == "shutdown"
    await world.register()
    assert world.states()[-1] == "active"
    assert len(world.engine.handles) == 2
    with pytest.raises(Shutdown):
        await _unregistered(world)
    await world.holder.stop()
    assert [each.finalized for each in world.engine.handles] == [1, 1]


async def _unregistered(world: World) -> None:
    await world.holder.unregister_worker(Q)
    await take_activation(world.holder)


async def test_handle_with_another_configuration_is_not_adopted() -> None:
    """A worker with another configuration gets a new handle, and the waiting one ends."""
    world = await World.started()
    await dies(world)
    await world.register(max_cached_workflows=7)
    assert [each.closing for each in world.engine.handles] == [True, False]
    await world.holder.stop()


@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_broken_handle_is_not_adopted(kind: str) -> None:
    """It drains, and the restarted worker gets a new one."""
    world = await World.started()
    polls = [
        asyncio.ensure_future(take_activation(world.holder)),
        asyncio.ensure_future(take_activity(world.holder)),
    ]
    await settle()
    await dies(world)
    await asyncio.gather(*polls, return_exceptions=True)
    world.handle.break_poll(kind, HandleBroken("gone"))
    await settle()
    assert world.handle.closing
    await world.register()
    assert (len(world.engine.handles), world.counters.adopted) == (2, 0)
    await world.holder.stop()


@LOSSES
async def test_distrusted_handle_is_not_adopted(lose: Loss) -> None:
    """After the connections were replaced, a returning worker gets a new handle."""
    world = await World.started()
    world.tables.distrust()
    await lose(world)
    assert world.handle.closing
    await world.register()
    assert len(world.engine.handles) == 2
    await world.holder.stop()


async def test_recycle_after_adoption_opens_a_new_handle() -> None:
    """A recycle always opens a new handle on a connection of its own."""
    world = await World.started(shared=True)
    await dies(world)
    await world.register()
    await world.holder.recycle(Q, "test")
    assert len(world.engine.connections) == 1
    assert [each.closing for each in world.engine.handles] == [True, False]
    await dies(world)
    await world.register()
    assert (world.counters.adopted, world.generation) == (2, 2)
    await world.holder.stop()


async def test_handle_is_adopted_repeatedly() -> None:
    """Each death restarts the wait; a worker that dies at once leaves the handle waiting."""
    world = await World.started()
    for _ in range(5):
        await dies(world)
        await asyncio.sleep(4)
        await world.register()
    assert world.counters.adopted == 5
    assert len(world.engine.handles) == 1
    await dies(world)
    await holder_crashes(world)
    await asyncio.sleep(4)
    assert world.states() == ["active"]
    await asyncio.sleep(2)
    assert world.states() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
