"""Registering and unregistering, one rule a test, on a scripted engine and virtual time."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._contract.handle import HandleConfig, Shutdown
from hourglass.errors import ConnectionFailedError, NamespaceNotFoundError, UsageError

from .scripted import (
    Q,
    RustPanic,
    ScriptedHandle,
    Worker,
    World,
    activation,
    attempt,
    complete,
    done,
    is_unregistered,
    refused_as_registered,
    refused_as_unregistered,
    take_activation,
    take_activity,
)
from .virtual_loop import settle


async def test_registering_returns_with_a_handle() -> None:
    """Registering returns when there is a handle, and the queue is registered from then on."""
    world = World()
    await world.holder.start()
    assert not world.is_served()
    await world.register()
    assert world.is_served()
    assert world.states() == ["active"]
    await world.holder.stop()


async def test_duplicate_registration_is_rejected() -> None:
    """A served queue accepts no other worker, and the first one stays."""
    world = await World.started()
    with refused_as_registered():
        await world.register()
    assert world.is_served()
    assert len(world.engine.handles) == 1
    await world.holder.stop()


async def test_duplicate_registration_is_rejected_while_connecting() -> None:
    """While the first is connecting, the queue is reserved, but not registered yet."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    first = asyncio.ensure_future(world.register())
    await settle()
    with refused_as_registered():
        await world.register()
    assert not world.is_served()
    assert [each.current for each in world.tables.registrations.values()] == [None]
    gate.set()
    await first
    assert len(world.engine.handles) == 1
    await world.holder.stop()


async def test_registrations_of_two_queues_are_concurrent() -> None:
    """One slow registration does not delay another."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    slow = asyncio.ensure_future(world.register("slow"))
    await settle()
    await world.register("quick")
    assert not slow.done()
    gate.set()
    await slow
    assert set(world.tables.registrations) == {"slow", "quick"}
    await world.holder.stop()


async def test_unregistering_is_immediate_and_idempotent() -> None:
    """When it returns, the queue is not registered and the handle is shutting down; a second call changes nothing."""
    world = await World.started()
    await world.holder.unregister_worker(Q)
    assert not world.is_served()
    assert world.handle.log == ["shutdown"]
    await world.holder.unregister_worker(Q)
    await world.holder.unregister_worker("never heard of")
    await world.holder.stop()
    assert world.handle.finalized == 1
    assert world.ended == [(Q, 1)]


async def test_unregistering_ends_polls_with_shutdown() -> None:
    """Waiting and later polls raise `Shutdown`."""
    world = await World.started()
    polls = [
        asyncio.ensure_future(take_activation(world.holder)),
        asyncio.ensure_future(take_activity(world.holder)),
    ]
    await settle()
    await world.holder.unregister_worker(Q)
    ends = await asyncio.gather(*polls, return_exceptions=True)
    assert [type(end) for end in ends] == [Shutdown, Shutdown]
    with pytest.raises(Shutdown):
        await take_activation(world.holder)
    await world.holder.stop()
    assert world.handle.cancelled == 0


async def test_poll_without_a_registration_raises() -> None:
    """A queue that was never registered raises another error than one that was unregistered."""
    world = World()
    with refused_as_unregistered():
        await take_activation(world.holder)  # not even started
    await world.holder.start()
    with refused_as_unregistered():
        await take_activation(world.holder)
    with refused_as_unregistered():
        await world.holder.recycle(Q, "because")


async def test_handle_opened_after_unregistering_is_shut_down() -> None:
    """Its connection is closed as well."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.openings.append(gate)
    registering = asyncio.ensure_future(world.register())
    await settle()
    await world.holder.unregister_worker(Q)
    with refused_as_unregistered():
        await registering
    gate.set()
    await settle()
    assert world.handle.log[0] == "shutdown"
    await world.holder.stop()
    assert world.handle.finalized == 1
    assert [each.closed for each in world.engine.connections] == [1]
    assert not world.is_served()


async def test_connection_opened_after_unregistering_is_closed() -> None:
    """No handle is opened on it."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.connects.append(gate)
    registering = asyncio.ensure_future(world.register())
    await settle()
    await world.holder.unregister_worker(Q)
    gate.set()
    assert is_unregistered((await asyncio.gather(registering, return_exceptions=True))[0])
    await world.holder.stop()
    assert [each.closed for each in world.engine.connections] == [1]
    assert world.engine.handles == []


async def test_unregistering_ends_the_pause_before_the_next_attempt() -> None:
    """Nothing is tried again for a worker that is gone."""
    world = World()
    await world.holder.start()
    world.engine.connects.extend([ConnectionFailedError("down", status="UNAVAILABLE")] * 2)
    registering = asyncio.ensure_future(world.register())
    await settle()
    await world.holder.unregister_worker(Q)
    assert is_unregistered((await asyncio.gather(registering, return_exceptions=True))[0])
    await world.holder.stop()
    assert len(world.engine.connects) == 1, "one attempt"
    assert asyncio.get_running_loop().time() == 1000


async def test_registration_after_unregistering_while_connecting() -> None:
    """It neither waits for the discarded handle nor uses it."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.openings.append(gate)
    registering = asyncio.ensure_future(world.register())
    await settle()
    await world.holder.unregister_worker(Q)
    await world.register()
    current = world.handle
    gate.set()
    await settle()
    assert world.is_served()
    assert not current.closing
    assert world.engine.handles[-1].closing
    assert is_unregistered((await asyncio.gather(registering, return_exceptions=True))[0])
    await world.holder.stop()


async def test_cancelled_registration_leaves_nothing() -> None:
    """The registration ends, and its handle as well."""
    world = World()
    await world.holder.start()
    gate = asyncio.Event()
    world.engine.openings.append(gate)
    registering = asyncio.ensure_future(world.register())
    await settle()
    registering.cancel()
    await settle()
    assert registering.cancelled()
    await world.register()
    gate.set()
    await world.holder.stop()
    assert [each.finalized for each in world.engine.handles] == [1, 1]
    assert world.worker.callbacks == []


async def test_death_of_a_worker_unregisters_it() -> None:
    """Its restart is not a duplicate, and its activities may finish."""
    world = await World.started(adoption=0)
    world.handle.give(attempt())
    await take_activity(world.holder)
    world.worker.die()
    assert not world.is_served()
    assert world.handle.closing
    successor = Worker()
    await world.holder.register_worker(Q, HandleConfig(task_queue=Q), successor)
    await asyncio.sleep(60)
    assert world.is_served()
    assert world.engine.handles[0].results == []
    assert world.states() == ["draining", "active"]
    await world.holder.stop()


async def test_dead_worker_cannot_register() -> None:
    """Its death is noticed although it came first."""
    world = World()
    await world.holder.start()
    world.worker.die()
    with refused_as_unregistered():
        await world.register()
    assert world.tables.registrations == {}
    await world.holder.stop()


async def test_hung_connect_is_retried() -> None:
    """Each attempt has a limit; a connection that opens later is closed."""
    world = World()
    await world.holder.start()
    late_connection, late_handle = asyncio.Event(), asyncio.Event()
    world.engine.connects.append(late_connection)
    world.engine.openings.append(late_handle)
    await world.register()
    assert asyncio.get_running_loop().time() == pytest.approx(1000 + 10 + 0.2 + 10 + 0.4)
    late_connection.set()
    late_handle.set()
    await settle()
    assert world.engine.handles[-1].closing
    await world.holder.stop()
    assert [each.closed for each in world.engine.connections] == [1, 1, 1]
    assert all(each.finalized for each in world.engine.handles)


@pytest.mark.parametrize(
    "error", [ConnectionFailedError("down", status="UNAVAILABLE"), RuntimeError("odd"), RustPanic("oh")]
)
async def test_transient_error_of_a_registration_is_retried(error: BaseException) -> None:
    """A server that is not available, or a panic of the engine, delays a registration."""
    world = World()
    await world.holder.start()
    world.engine.connects.extend([error, error])
    world.engine.openings.append(error)
    await world.register()
    assert asyncio.get_running_loop().time() == pytest.approx(1000 + 0.2 + 0.4 + 0.8)
    await world.holder.stop()
    assert all(each.closed for each in world.engine.connections)


async def test_permanent_error_of_a_registration_is_raised() -> None:
    """The caller gets the reason, and the queue is free again."""
    world = World()
    await world.holder.start()
    world.engine.connects.append(NamespaceNotFoundError("no such namespace", status="NOT_FOUND"))
    with pytest.raises(NamespaceNotFoundError):
        await world.register()
    assert world.tables.registrations == {}
    await world.register()
    await world.holder.stop()


async def test_invalid_configuration_is_rejected_before_connecting() -> None:
    """No connection is opened."""
    world = World()
    await world.holder.start()
    with pytest.raises(ValueError, match="workflow_pollers"):
        await world.register(workflow_pollers=0)
    with pytest.raises(UsageError):
        await world.holder.register_worker("other", HandleConfig(task_queue=Q), world.worker)
    assert world.engine.connections == []


async def test_first_handle_uses_the_shared_connection() -> None:
    """A replacement always gets a connection of its own."""
    world = await World.started(shared=True)
    assert world.engine.connections == []
    await world.holder.recycle(Q, "test")
    assert len(world.engine.connections) == 1
    await world.holder.stop()
    assert world.shared is not None
    assert world.shared.closed == 0
    assert world.engine.connections[0].closed == 1


async def test_failed_shared_connection_is_not_used_again() -> None:
    """The error may be the connection's: the second attempt has its own, and the shared one stays open."""
    world = World(shared=True)
    await world.holder.start()
    world.engine.openings.append(RuntimeError("no"))
    await world.register()
    assert len(world.engine.connections) == 1
    assert world.shared is not None
    assert (world.shared.handles, world.shared.closed) == ([], 0)
    await world.holder.stop()


async def test_registration_during_a_drain_uses_another_connection() -> None:
    """An engine rejects a second handle for a queue on one connection."""
    world = await World.started(shared=True)
    world.handle.deaf = True
    await world.holder.unregister_worker(Q)
    await world.register()
    assert len(world.engine.connections) == 1
    assert world.states() == ["draining", "active"]
    await world.holder.stop()


async def test_stop_waits_until_every_handle_is_closed() -> None:
    """Afterwards there is no handle, connection or task."""
    world = await World.started()
    await world.register("other")
    world.handle.give(activation())
    ticket = await take_activation(world.holder, "other")
    stopping = asyncio.ensure_future(world.holder.stop())
    await settle()
    assert not stopping.done()
    await complete(world.holder, ticket, done())
    await stopping
    assert world.tables.records == {}
    assert all(isinstance(each, ScriptedHandle) and each.finalized for each in world.engine.handles)
    assert asyncio.all_tasks() == {asyncio.current_task()}
