"""A new holder takes over the tables of a dead holder and leaves no handle behind.

Handles that wait for their workers to register again are in `test_adoption`; here adoption is disabled.
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
    dispatch,
    done,
    eviction,
    is_unregistered,
    raises_unregistered,
    receive_activation,
    receive_activity,
    start_blocked,
    start_poll,
)
from .virtual_loop import settle


async def test_handles_of_a_dead_holder_are_drained_by_its_successor() -> None:
    world = await World.started(shared=True, adoption=0)
    await world.crash()
    assert not world.is_served()
    assert world.engine.handles[0].closing
    await world.register()
    await settle()
    assert world.engine.handles[0].finalized == 1
    assert world.generation == 2
    assert world.counters.takeovers == 1


async def test_polls_of_a_dead_holder_end_with_unregistered() -> None:
    world = await World.started(adoption=0)
    polling = await start_poll(world)
    await world.crash()
    with raises_unregistered():
        await polling
    with raises_unregistered():
        await receive_activation(world.holder)


async def test_undispatched_tasks_of_a_dead_holder_are_failed() -> None:
    """So that the engine delivers them again."""
    world = await World.started(adoption=0)
    for poll in (receive_activation, receive_activity):
        for _ in range(2):
            asking = asyncio.ensure_future(poll(world.holder))
            await settle()
            asking.cancel()
    world.handle.deliver_while_paused(activation())
    world.handle.deliver_while_paused(attempt())
    await settle()
    assert (len(world.record.runs.open), len(world.record.attempts.open)) == (1, 1)
    await world.crash()
    await settle()
    old = world.engine.handles[0]
    assert old.log[:2] == ["shutdown", "begin run-1"]
    assert [type(completion) for completion in old.completions] == [TaskFailed]
    assert [type(result) for result in old.results] == [AttemptFailed]
    assert old.finalized == 1


async def test_new_holder_accepts_completions_for_handles_of_a_dead_holder() -> None:
    world = await World.started(adoption=0)
    ticket, _ = await dispatch(world, activation(), attempt())
    await world.crash()
    await complete(world.holder, ticket, done())
    await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))
    await settle()
    old = world.engine.handles[0]
    assert (old.completions, old.results, old.finalized) == ([done()], [ActivityOk(b"a-1")], 1)


async def test_handle_that_a_dead_holder_was_opening_is_shut_down() -> None:
    world = await World.idle()
    gate, registering = await start_blocked(world.engine.openings, world.register())
    await world.crash()
    with raises_unregistered():
        await registering
    await world.register()
    gate.set()
    await settle()
    assert [handle.finalized for handle in world.engine.handles] == [0, 1]
    assert world.states() == ["active"]


async def test_both_handles_of_a_recycle_are_finalized_if_the_holder_dies() -> None:
    world = await World.started(adoption=0)
    gate, recycling = await start_blocked(world.engine.openings, world.holder.recycle(Q, "test"))
    await world.crash()
    gate.set()
    await settle()
    assert is_unregistered((await asyncio.gather(recycling, return_exceptions=True))[0])
    assert [handle.finalized for handle in world.engine.handles] == [1, 1]


@pytest.mark.parametrize("misbehaviour", ["ignores_shutdown", "finalize_hangs"])
async def test_new_holder_continues_an_interrupted_drain(misbehaviour: str) -> None:
    world = await World.started(adoption=0)
    world.handle.deliver(eviction())
    await receive_activation(world.holder)
    setattr(world.handle, misbehaviour, True)
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5)
    drain = world.tables.records[1].drain
    assert drain is not None
    assert drain.task is not None
    drain.task.cancel()
    await settle()
    await world.crash()
    await asyncio.sleep(60)
    assert world.counters.abandoned == 1
    assert world.tables.records == {}


async def test_dead_holder_cannot_unregister_the_worker_of_its_successor() -> None:
    world = await World.started(adoption=0)
    dead, first = world.holder, world.worker
    await world.crash()
    world.worker = type(first)()
    await world.register()
    await dead.unregister_worker(Q)
    await dead.stop()
    first.die()
    assert world.is_served()
    with raises_unregistered():
        await receive_activation(dead)
    with raises_unregistered():
        await dead.register_worker("other", world.tables.registrations[Q].config, first.add_death_callback)


async def test_generations_and_tokens_are_unique_across_holders() -> None:
    world = await World.started(adoption=0)
    seen: set[tuple[int, int]] = set()
    for _ in range(3):
        world.handle.deliver(activation())
        ticket = await receive_activation(world.holder)
        assert ticket.generation not in {generation for generation, _ in seen}
        assert ticket.token not in {token for _, token in seen}
        seen.add((ticket.generation, ticket.token))
        await world.crash()
        await world.register()


async def test_new_holder_ends_polls_of_a_queue_unregistered_before_the_crash() -> None:
    world = await World.started(adoption=0)
    await world.holder.unregister_worker(Q)
    await world.crash()
    with pytest.raises(Shutdown):
        await receive_activation(world.holder)
