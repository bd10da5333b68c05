"""A broken handle is replaced without an error for its poll loops."""

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
    dispatch,
    done,
    raises_stale,
    raises_unregistered,
    receive_activation,
    receive_activity,
    start_blocked,
    start_poll,
    start_polls,
)
from .virtual_loop import settle


async def test_recycle_opens_a_new_handle_while_the_old_one_drains() -> None:
    world = await World.started()
    world.handle.ignores_shutdown = True
    before = asyncio.get_running_loop().time()
    await world.holder.recycle(Q, "test")
    assert asyncio.get_running_loop().time() == before
    assert world.states() == ["draining", "active"]
    assert len(world.engine.connections) == 2
    assert world.is_served()
    assert world.counters.recycles == 1


async def test_poll_loops_continue_on_the_new_handle() -> None:
    world = await World.started()
    workflow = asyncio.ensure_future(receive_activation(world.holder))
    activity = asyncio.ensure_future(receive_activity(world.holder))
    await settle()
    await world.holder.recycle(Q, "test")
    world.handle.deliver(activation())
    world.handle.deliver(attempt())
    tickets = [await workflow, await activity]
    assert [ticket.generation for ticket in tickets] == [2, 2]


@pytest.mark.parametrize("kind", ["workflow", "activity"])
@pytest.mark.parametrize(
    "error", [Shutdown("unexpected"), HandleBroken("fatal"), RuntimeError("?"), RustPanic("oh")], ids=repr
)
async def test_poll_that_ends_unexpectedly_recycles_the_handle(kind: str, error: BaseException) -> None:
    world = await World.started()
    polls = await start_polls(world)
    world.handle.break_poll(kind, error)
    await asyncio.sleep(0.3)
    assert world.counters.recycles == 1
    world.handle.deliver(activation())
    world.handle.deliver(attempt())
    assert [ticket.generation for ticket in await asyncio.gather(*polls)] == [2, 2]
    await world.holder.stop()
    assert world.counters.closed == 2


async def test_two_failed_polls_cause_a_single_recycle() -> None:
    world = await World.started()
    polls = await start_polls(world)
    world.handle.break_poll("workflow", RuntimeError("fatal"))
    world.handle.break_poll("activity", Shutdown("fatal"))
    await asyncio.sleep(1)
    assert len(world.engine.handles) == 2
    await world.holder.stop()
    assert [type(end) for end in await asyncio.gather(*polls, return_exceptions=True)] == [Shutdown, Shutdown]


async def test_repeatedly_failing_handles_are_replaced_with_backoff() -> None:
    world = await World.started()
    loop = asyncio.get_running_loop()
    opened: list[float] = []

    def broken(handle: ScriptedHandle) -> None:
        opened.append(loop.time())
        handle.break_poll("workflow", HandleBroken("again"))

    world.engine.changes.append(broken)
    polling = await start_poll(world)
    world.handle.break_poll("workflow", HandleBroken("first"))
    await asyncio.sleep(60)
    pauses = [round(later - sooner, 3) for sooner, later in itertools.pairwise(opened)]
    assert pauses[:6] == [0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    world.engine.changes.clear()
    await asyncio.sleep(10)
    world.handle.deliver(activation())
    assert (await polling).item.run_id == "run-1"


async def test_handle_that_has_worked_is_replaced_without_backoff() -> None:
    world = await World.started()
    (ticket,) = await dispatch(world, activation())
    await complete(world.holder, ticket, done())
    before = asyncio.get_running_loop().time()
    polling = asyncio.ensure_future(receive_activation(world.holder))
    world.handle.break_poll("workflow", HandleBroken("later"))
    await settle()
    assert world.generation == 2
    assert asyncio.get_running_loop().time() == before
    polling.cancel()


async def test_replacement_of_a_handle_is_retried_after_any_error() -> None:
    """Also after errors that would fail a registration: their cause may be fixed."""
    world = await World.started()
    world.engine.connects.extend(
        [ConnectionFailedError("down", status="UNAVAILABLE")] * 9
        + [NamespaceNotFoundError("x", status="NOT_FOUND"), ValueError("x")]
    )
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    assert world.is_served()
    assert [registration.current for registration in world.tables.registrations.values()] == [None]
    await recycling
    assert world.generation == 2


async def test_concurrent_recycle_calls_share_one_recycle() -> None:
    world = await World.started()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    recycles = [asyncio.ensure_future(world.holder.recycle(Q, str(n))) for n in range(2)]
    await settle()
    assert not any(recycle.done() for recycle in recycles)
    gate.set()
    await asyncio.gather(*recycles)
    assert len(world.engine.handles) == 2
    assert world.counters.recycles == 1


async def test_recycle_during_registration_waits_for_the_first_handle() -> None:
    world = await World.idle()
    gate, registering = await start_blocked(world.engine.connects, world.register())
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    gate.set()
    await asyncio.gather(registering, recycling)
    assert len(world.engine.handles) == 1


async def test_unregistering_during_a_recycle_shuts_down_the_new_handle() -> None:
    world = await World.started()
    gate, recycling = await start_blocked(world.engine.openings, world.holder.recycle(Q, "test"))
    await world.holder.unregister_worker(Q)
    with pytest.raises(Shutdown):
        await recycling
    gate.set()
    await world.holder.stop()
    assert [handle.finalized for handle in world.engine.handles] == [1, 1]
    with pytest.raises(Shutdown):
        await world.holder.recycle(Q, "too late")
    with raises_unregistered():
        await world.holder.recycle("unknown", "test")


async def test_recycle_continues_if_its_caller_is_cancelled() -> None:
    world = await World.started()
    gate, recycling = await start_blocked(world.engine.connects, world.holder.recycle(Q, "test"))
    recycling.cancel()
    gate.set()
    await settle()
    assert world.generation == 2


async def test_recycled_handle_accepts_completions_of_its_own_tasks() -> None:
    world = await World.started()
    old = world.handle
    old.deliver(activation())
    old.deliver(attempt())
    ticket = await receive_activation(world.holder)
    await receive_activity(world.holder)
    await world.holder.recycle(Q, "test")
    world.handle.deliver(activation())  # the same run, on the new handle
    newer = await receive_activation(world.holder)
    await complete(world.holder, ticket, done())
    await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))
    assert old.completions == [done()]
    assert old.results == [ActivityOk(b"a-1")]
    assert world.handle.completions == []
    with raises_stale():
        await complete(world.holder, ticket, done())
    await complete(world.holder, newer, done())
    await settle()
    assert world.states() == ["active"]
    await world.holder.stop()
    assert world.ended == [(Q, 1), (Q, 2)]
