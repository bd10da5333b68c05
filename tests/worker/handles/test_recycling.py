"""A handle that breaks is replaced, and nobody who polls hears of it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from hourglass._contract.handle import ActivityOk, HandleBroken, Shutdown
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError

from .scripted import (
    Q,
    RustPanic,
    ScriptedHandle,
    World,
    activation,
    attempt,
    complete,
    done,
    refused_as_stale,
    refused_as_unregistered,
    take_activation,
    take_activity,
)
from .virtual_loop import settle


async def test_recycle_opens_a_new_handle_at_once() -> None:
    """It does not wait for the old handle, which drains in the background on a connection of its own."""
    world = await World.started()
    world.handle.deaf = True
    before = asyncio.get_running_loop().time()
    await world.holder.recycle(Q, "test")
    assert asyncio.get_running_loop().time() == before
    assert world.states() == ["draining", "active"]
    assert len(world.engine.connections) == 2
    assert world.is_served()
    assert world.counters.recycles == 1
    await world.holder.stop()


async def test_poll_loops_continue_on_the_new_handle() -> None:
    """A poll loop that waited on the old handle receives items of the new one."""
    world = await World.started()
    workflow = asyncio.ensure_future(take_activation(world.holder))
    activity = asyncio.ensure_future(take_activity(world.holder))
    await settle()
    await world.holder.recycle(Q, "test")
    world.handle.give(activation())
    world.handle.give(attempt())
    tickets = [await workflow, await activity]
    assert [ticket.generation for ticket in tickets] == [2, 2]
    await world.holder.stop()


@pytest.mark.parametrize("kind", ["workflow", "activity"])
@pytest.mark.parametrize(
    "error", [Shutdown("unasked"), HandleBroken("fatal"), RuntimeError("?"), RustPanic("oh")], ids=repr
)
async def test_failing_poll_recycles_the_handle(kind: str, error: BaseException) -> None:
    """Any unexpected exception of a poll means that the handle is broken: a new one, and no error."""
    world = await World.started()
    polls = [
        asyncio.ensure_future(take_activation(world.holder)),
        asyncio.ensure_future(take_activity(world.holder)),
    ]
    await settle()
    world.handle.break_poll(kind, error)
    await asyncio.sleep(0.3)
    assert world.counters.recycles == 1
    world.handle.give(activation())
    world.handle.give(attempt())
    assert [ticket.generation for ticket in await asyncio.gather(*polls)] == [2, 2]
    await world.holder.stop()
    assert world.counters.closed == 2


async def test_two_failing_polls_are_one_recycle() -> None:
    """A fatal error reaches one poll as an error and the other as a shutdown: one new handle."""
    world = await World.started()
    polls = [
        asyncio.ensure_future(take_activation(world.holder)),
        asyncio.ensure_future(take_activity(world.holder)),
    ]
    await settle()
    world.handle.break_poll("workflow", RuntimeError("fatal"))
    world.handle.break_poll("activity", Shutdown("fatal"))
    await asyncio.sleep(1)
    assert len(world.engine.handles) == 2
    await world.holder.stop()
    assert [type(end) for end in await asyncio.gather(*polls, return_exceptions=True)] == [Shutdown, Shutdown]


async def test_failing_handles_are_replaced_with_backoff() -> None:
    """0.2 s, doubled, up to 10 s, without end; it recovers by itself."""
    world = await World.started()
    loop = asyncio.get_running_loop()
    opened: list[float] = []

    def broken(handle: ScriptedHandle) -> None:
        opened.append(loop.time())
        handle.break_poll("workflow", HandleBroken("again"))

    world.engine.changes.append(broken)
    polling = asyncio.ensure_future(take_activation(world.holder))
    await settle()
    world.handle.break_poll("workflow", HandleBroken("first"))
    await asyncio.sleep(60)
    pauses = [round(later - sooner, 3) for sooner, later in itertools.pairwise(opened)]
    assert pauses[:6] == [0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    world.engine.changes.clear()
    await asyncio.sleep(10)
    world.handle.give(activation())
    assert (await polling).item.run_id == "run-1"
    await world.holder.stop()


async def test_working_handle_is_replaced_without_backoff() -> None:
    """Only handles that never worked are replaced with a delay."""
    world = await World.started()
    world.handle.give(activation())
    ticket = await take_activation(world.holder)
    await complete(world.holder, ticket, done())
    before = asyncio.get_running_loop().time()
    polling = asyncio.ensure_future(take_activation(world.holder))
    world.handle.break_poll("workflow", HandleBroken("later"))
    await settle()
    assert world.generation == 2
    assert asyncio.get_running_loop().time() == before
    polling.cancel()
    await world.holder.stop()


async def test_replacement_is_retried_without_end() -> None:
    """Once a queue was served, no error ends it, because the cause may be repaired."""
    world = await World.started()
    world.engine.connects.extend(
        [ConnectionFailedError("down", status="UNAVAILABLE")] * 9
        + [NamespaceNotFoundError("x", status="NOT_FOUND"), ValueError("x")]
    )
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    assert world.is_served()
    assert [each.current for each in world.tables.registrations.values()] == [None]
    await recycling
    assert world.generation == 2
    await world.holder.stop()


async def test_concurrent_recycles_are_one() -> None:
    """The second call joins the first and returns with it."""
    world = await World.started()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    both = [asyncio.ensure_future(world.holder.recycle(Q, str(n))) for n in range(2)]
    await settle()
    assert not any(each.done() for each in both)
    gate.set()
    await asyncio.gather(*both)
    assert len(world.engine.handles) == 2
    assert world.counters.recycles == 1
    await world.holder.stop()


async def test_recycle_during_registration_waits_for_the_handle() -> None:
    """There is no handle to replace yet."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    registering = asyncio.ensure_future(world.register())
    await settle()
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    gate.set()
    await asyncio.gather(registering, recycling)
    assert len(world.engine.handles) == 1
    await world.holder.stop()


async def test_unregistering_during_a_recycle_wins() -> None:
    """The new handle is shut down when it opens; the caller of the recycle gets `Shutdown`."""
    world = await World.started()
    gate = asyncio.Event()
    world.engine.openings.append(gate)
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    await world.holder.unregister_worker(Q)
    with pytest.raises(Shutdown):
        await recycling
    gate.set()
    await world.holder.stop()
    assert [each.finalized for each in world.engine.handles] == [1, 1]
    with pytest.raises(Shutdown):
        await world.holder.recycle(Q, "too late")
    with refused_as_unregistered():
        await world.holder.recycle("nobody", "at all")


async def test_recycle_survives_cancellation_of_its_caller() -> None:
    """The recycle continues."""
    world = await World.started()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    recycling.cancel()
    gate.set()
    await settle()
    assert world.generation == 2
    await world.holder.stop()


async def test_old_generation_accepts_its_completions() -> None:
    """Items dispatched before the recycle are completed on the handle that delivered them."""
    world = await World.started()
    old = world.handle
    old.give(activation())
    old.give(attempt())
    ticket = await take_activation(world.holder)
    await take_activity(world.holder)
    await world.holder.recycle(Q, "test")
    world.handle.give(activation())  # the same run, on the new handle
    newer = await take_activation(world.holder)
    await complete(world.holder, ticket, done())
    await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))
    assert old.completions == [done()]
    assert old.results == [ActivityOk(b"a-1")]
    assert world.handle.completions == []
    with refused_as_stale():
        await complete(world.holder, ticket, done())
    await complete(world.holder, newer, done())
    await settle()
    assert world.states() == ["active"]
    await world.holder.stop()
    assert world.ended == [(Q, 1), (Q, 2)]
