"""Registering and unregistering workers, on a scripted engine and virtual time."""

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
    dispatch,
    done,
    is_unregistered,
    raises_already_registered,
    raises_unregistered,
    receive_activation,
    start_blocked,
    start_polls,
)
from .virtual_loop import settle


async def test_register_worker_returns_when_its_handle_is_open() -> None:
    world = await World.idle()
    assert not world.is_served()
    await world.register()
    assert world.is_served()
    assert world.states() == ["active"]


async def test_second_registration_of_a_queue_is_rejected() -> None:
    world = await World.started()
    with raises_already_registered():
        await world.register()
    assert world.is_served()
    assert len(world.engine.handles) == 1


async def test_second_registration_is_rejected_while_the_first_is_connecting() -> None:
    world = await World.idle()
    gate, first = await start_blocked(world.engine.connects, world.register())
    with raises_already_registered():
        await world.register()
    assert not world.is_served()
    assert [registration.current for registration in world.tables.registrations.values()] == [None]
    gate.set()
    await first
    assert len(world.engine.handles) == 1


async def test_slow_registration_does_not_delay_another_queue() -> None:
    world = await World.idle()
    gate, slow = await start_blocked(world.engine.connects, world.register("slow"))
    await world.register("quick")
    assert not slow.done()
    gate.set()
    await slow
    assert set(world.tables.registrations) == {"slow", "quick"}


async def test_unregistering_is_immediate_and_idempotent() -> None:
    world = await World.started()
    await world.holder.unregister_worker(Q)
    assert not world.is_served()
    assert world.handle.log == ["shutdown"]
    await world.holder.unregister_worker(Q)
    await world.holder.unregister_worker("unknown")
    await world.holder.stop()
    assert world.handle.finalized == 1
    assert world.ended == [(Q, 1)]


async def test_unregistering_ends_waiting_and_later_polls_with_shutdown() -> None:
    world = await World.started()
    polls = await start_polls(world)
    await world.holder.unregister_worker(Q)
    ends = await asyncio.gather(*polls, return_exceptions=True)
    assert [type(end) for end in ends] == [Shutdown, Shutdown]
    with pytest.raises(Shutdown):
        await receive_activation(world.holder)
    await world.holder.stop()
    assert world.handle.cancelled == 0


async def test_poll_of_a_queue_that_was_never_registered_raises_unregistered() -> None:
    world = World()
    with raises_unregistered():
        await receive_activation(world.holder)  # not started yet
    await world.holder.start()
    with raises_unregistered():
        await receive_activation(world.holder)
    with raises_unregistered():
        await world.holder.recycle(Q, "because")


async def test_handle_that_opens_after_unregistering_is_shut_down() -> None:
    world = await World.idle()
    gate, registering = await start_blocked(world.engine.openings, world.register())
    await world.holder.unregister_worker(Q)
    with raises_unregistered():
        await registering
    gate.set()
    await settle()
    assert world.handle.log[0] == "shutdown"
    await world.holder.stop()
    assert world.handle.finalized == 1
    assert [connection.closed for connection in world.engine.connections] == [1]
    assert not world.is_served()


async def test_connection_opened_after_unregistering_is_closed_and_opens_no_handle() -> None:
    world = await World.idle()
    gate, registering = await start_blocked(world.engine.connects, world.register())
    await world.holder.unregister_worker(Q)
    gate.set()
    assert is_unregistered((await asyncio.gather(registering, return_exceptions=True))[0])
    await world.holder.stop()
    assert [connection.closed for connection in world.engine.connections] == [1]
    assert world.engine.handles == []


async def test_unregistering_ends_the_backoff_of_a_registration() -> None:
    world = await World.idle()
    world.engine.connects.extend([ConnectionFailedError("down", status="UNAVAILABLE")] * 2)
    registering = asyncio.ensure_future(world.register())
    await settle()
    await world.holder.unregister_worker(Q)
    assert is_unregistered((await asyncio.gather(registering, return_exceptions=True))[0])
    await world.holder.stop()
    assert len(world.engine.connects) == 1, "one attempt"
    assert asyncio.get_running_loop().time() == 1000


async def test_registration_after_unregistering_does_not_use_the_discarded_handle() -> None:
    world = await World.idle()
    gate, registering = await start_blocked(world.engine.openings, world.register())
    await world.holder.unregister_worker(Q)
    await world.register()
    current = world.handle
    gate.set()
    await settle()
    assert world.is_served()
    assert not current.closing
    assert world.engine.handles[-1].closing
    assert is_unregistered((await asyncio.gather(registering, return_exceptions=True))[0])


async def test_cancelled_registration_closes_its_handle() -> None:
    world = await World.idle()
    gate, registering = await start_blocked(world.engine.openings, world.register())
    registering.cancel()
    await settle()
    assert registering.cancelled()
    await world.register()
    gate.set()
    await world.holder.stop()
    assert [handle.finalized for handle in world.engine.handles] == [1, 1]
    assert world.worker.callbacks == []


async def test_dead_worker_is_unregistered_and_its_activities_may_finish() -> None:
    world = await World.started(adoption=0)
    await dispatch(world, attempt())
    world.worker.die()
    assert not world.is_served()
    assert world.handle.closing
    successor = Worker()
    await world.holder.register_worker(Q, HandleConfig(task_queue=Q), successor.add_death_callback)
    await asyncio.sleep(60)
    assert world.is_served()
    assert world.engine.handles[0].results == []
    assert world.states() == ["draining", "active"]


async def test_worker_that_died_before_registering_is_rejected() -> None:
    world = await World.idle()
    world.worker.die()
    with raises_unregistered():
        await world.register()
    assert world.tables.registrations == {}


async def test_hung_connect_of_a_registration_is_retried_and_closed_later() -> None:
    world = await World.idle()
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
    assert [connection.closed for connection in world.engine.connections] == [1, 1, 1]
    assert all(handle.finalized for handle in world.engine.handles)


@pytest.mark.parametrize(
    "error", [ConnectionFailedError("down", status="UNAVAILABLE"), RuntimeError("odd"), RustPanic("oh")]
)
async def test_transient_error_of_a_registration_is_retried(error: BaseException) -> None:
    world = await World.idle()
    world.engine.connects.extend([error, error])
    world.engine.openings.append(error)
    await world.register()
    assert asyncio.get_running_loop().time() == pytest.approx(1000 + 0.2 + 0.4 + 0.8)
    await world.holder.stop()
    assert all(connection.closed for connection in world.engine.connections)


async def test_permanent_error_of_a_registration_is_raised_and_frees_the_queue() -> None:
    world = await World.idle()
    world.engine.connects.append(NamespaceNotFoundError("no such namespace", status="NOT_FOUND"))
    with pytest.raises(NamespaceNotFoundError):
        await world.register()
    assert world.tables.registrations == {}
    await world.register()


async def test_invalid_handle_configuration_is_rejected_before_connecting() -> None:
    world = await World.idle()
    with pytest.raises(ValueError, match="workflow_pollers"):
        await world.register(workflow_pollers=0)
    with pytest.raises(UsageError):
        await world.holder.register_worker(
            "other", HandleConfig(task_queue=Q), world.worker.add_death_callback
        )
    assert world.engine.connections == []


async def test_first_handle_uses_the_shared_connection_and_replacements_their_own() -> None:
    world = await World.started(shared=True)
    assert world.engine.connections == []
    await world.holder.recycle(Q, "test")
    assert len(world.engine.connections) == 1
    await world.holder.stop()
    assert world.shared is not None
    assert world.shared.closed == 0
    assert world.engine.connections[0].closed == 1


async def test_registration_retries_with_its_own_connection_if_the_shared_one_fails() -> None:
    world = await World.idle(shared=True)
    world.engine.openings.append(RuntimeError("no"))
    await world.register()
    assert len(world.engine.connections) == 1
    assert world.shared is not None
    assert (world.shared.handles, world.shared.closed) == ([], 0)


async def test_registration_during_a_drain_uses_another_connection() -> None:
    """An engine rejects a second handle for a queue on the same connection."""
    world = await World.started(shared=True)
    world.handle.ignores_shutdown = True
    await world.holder.unregister_worker(Q)
    await world.register()
    assert len(world.engine.connections) == 1
    assert world.states() == ["draining", "active"]


async def test_holder_stop_waits_until_every_handle_is_closed() -> None:
    world = await World.started()
    await world.register("other")
    world.handle.deliver(activation())
    ticket = await receive_activation(world.holder, "other")
    stopping = asyncio.ensure_future(world.holder.stop())
    await settle()
    assert not stopping.done()
    await complete(world.holder, ticket, done())
    await stopping
    assert world.tables.records == {}
    assert all(isinstance(handle, ScriptedHandle) and handle.finalized for handle in world.engine.handles)
    assert asyncio.all_tasks() == {asyncio.current_task()}
