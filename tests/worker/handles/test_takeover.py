"""A holder that is thrown away in the middle of anything leaves no ghosts: the next one takes over its tables.

Handles that wait for their workers to come back are in `test_adoption`; here nobody waits.
"""

from __future__ import annotations

import asyncio

import pytest

from hourglass._contract.handle import ActivityOk, AttemptFailed, Shutdown
from hourglass._evaluator.commands import TaskFailed

from .scripted import (
    Q,
    World,
    activation,
    attempt,
    complete,
    done,
    eviction,
    is_unregistered,
    refused_as_unregistered,
    take_activation,
    take_activity,
)
from .virtual_loop import settle


async def crash(world: World) -> None:
    """The holder is gone without a word; another begins on the same tables."""
    world.holder = world.new_holder()
    await world.holder.start()


async def test_handles_of_a_dead_holder_are_drained() -> None:
    """They stop polling, and the queue is served after a new registration."""
    world = await World.started(shared=True, adoption=0)
    await crash(world)
    assert not world.is_served()
    assert world.engine.handles[0].closing
    await world.register()
    await settle()
    assert world.engine.handles[0].finalized == 1
    assert world.generation == 2
    assert world.counters.takeovers == 1
    await world.holder.stop()


async def test_death_of_the_holder_ends_polls() -> None:
    """No poll loop waits for a void registration."""
    world = await World.started(adoption=0)
    polling = asyncio.ensure_future(take_activation(world.holder))
    await settle()
    await crash(world)
    with refused_as_unregistered():
        await polling
    with refused_as_unregistered():
        await take_activation(world.holder)
    await world.holder.stop()


async def test_kept_items_of_a_dead_holder_are_failed() -> None:
    """Tasks fail after the shutdown, attempts are reported as failed: the engine delivers both again."""
    world = await World.started(adoption=0)
    for poll in (take_activation, take_activity):
        for _ in range(2):
            asking = asyncio.ensure_future(poll(world.holder))
            await settle()
            asking.cancel()
    world.handle.bring(activation())
    world.handle.bring(attempt())
    await settle()
    assert (len(world.record.runs.open), len(world.record.attempts.open)) == (1, 1)
    await crash(world)
    await settle()
    old = world.engine.handles[0]
    assert old.log[:2] == ["shutdown", "begin run-1"]
    assert [type(each) for each in old.completions] == [TaskFailed]
    assert [type(each) for each in old.results] == [AttemptFailed]
    assert old.finalized == 1
    await world.holder.stop()


async def test_new_holder_accepts_completions_for_old_handles() -> None:
    """Evaluators and executors outlive the holder."""
    world = await World.started(adoption=0)
    world.handle.give(activation())
    world.handle.give(attempt())
    ticket = await take_activation(world.holder)
    await take_activity(world.holder)
    await crash(world)
    await complete(world.holder, ticket, done())
    await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))
    await settle()
    old = world.engine.handles[0]
    assert (old.completions, old.results, old.finalized) == ([done()], [ActivityOk(b"a-1")], 1)
    await world.holder.stop()


async def test_crash_while_connecting_leaves_no_handle() -> None:
    """The handle that the dead holder was opening is shut down when it opens."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.openings.append(gate)
    registering = asyncio.ensure_future(world.register())
    await settle()
    await crash(world)
    with refused_as_unregistered():
        await registering
    await world.register()
    gate.set()
    await settle()
    assert [each.finalized for each in world.engine.handles] == [0, 1]
    assert world.states() == ["active"]
    await world.holder.stop()


async def test_crash_during_a_recycle_leaves_no_handle() -> None:
    """Neither the old handle nor the new one survives."""
    world = await World.started(adoption=0)
    gate = asyncio.Event()
    world.engine.openings.append(gate)
    recycling = asyncio.ensure_future(world.holder.recycle(Q, "test"))
    await settle()
    await crash(world)
    gate.set()
    await settle()
    assert is_unregistered((await asyncio.gather(recycling, return_exceptions=True))[0])
    assert [each.finalized for each in world.engine.handles] == [1, 1]
    await world.holder.stop()


@pytest.mark.parametrize("misbehaviour", ["deaf", "hangs_at_the_end"])
async def test_drain_continues_after_a_crash(misbehaviour: str) -> None:
    """Also from the middle of draining or finalizing; the handle is not finalized twice."""
    world = await World.started(adoption=0)
    world.handle.give(eviction())
    await take_activation(world.holder)
    setattr(world.handle, misbehaviour, True)
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5)
    drain = world.tables.records[1].drain
    assert drain is not None
    assert drain.task is not None
    drain.task.cancel()
    await settle()
    await crash(world)
    await asyncio.sleep(60)
    assert world.counters.abandoned == 1
    assert world.tables.records == {}


async def test_dead_holder_cannot_unregister() -> None:
    """A late call through it does not unregister the worker of its successor."""
    world = await World.started(adoption=0)
    dead, first = world.holder, world.worker
    await crash(world)
    world.worker = type(first)()
    await world.register()
    await dead.unregister_worker(Q)
    await dead.stop()
    first.die()
    assert world.is_served()
    with refused_as_unregistered():
        await take_activation(dead)
    with refused_as_unregistered():
        await dead.register_worker("other", world.tables.registrations[Q].config, first)
    await world.holder.stop()


async def test_generations_and_tokens_never_repeat() -> None:
    """A completion from before the crash cannot be mistaken for a later one."""
    world = await World.started(adoption=0)
    seen: set[tuple[int, int]] = set()
    for _ in range(3):
        world.handle.give(activation())
        ticket = await take_activation(world.holder)
        assert ticket.generation not in {generation for generation, _ in seen}
        assert ticket.token not in {token for _, token in seen}
        seen.add((ticket.generation, ticket.token))
        await crash(world)
        await world.register()
    await world.holder.stop()


async def test_unregistering_is_remembered_across_a_crash() -> None:
    """A poll loop of a worker that unregistered before the crash ends normally."""
    world = await World.started(adoption=0)
    await world.holder.unregister_worker(Q)
    await crash(world)
    with pytest.raises(Shutdown):
        await take_activation(world.holder)
    await world.holder.stop()
