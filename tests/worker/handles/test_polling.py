"""Polls belong to the holder: a receiver may be cancelled at any time without losing an item."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._contract.handle import ActivityCancel, ActivityOk, Shutdown
from hourglass._evaluator.events import Activation
from hourglass.converter import Payload

from .scripted import (
    DispatchedItem,
    Q,
    World,
    activation,
    attempt,
    complete,
    dispatch,
    done,
    raises_stale,
    receive_activation,
    receive_activity,
)
from .virtual_loop import run, settle


def receiving_task(world: World, kind: str = "workflow") -> asyncio.Future[DispatchedItem]:
    """Return a task that receives one item and ends."""
    poll = receive_activation if kind == "workflow" else receive_activity
    return asyncio.ensure_future(poll(world.holder))


async def test_handle_without_a_poll_loop_is_paused_and_loses_no_task() -> None:
    world = await World.started()
    first = receiving_task(world)
    await settle()
    first.cancel()
    await settle()
    assert world.handle.active_kinds == 1  # activities only, which have had no poll loop yet
    world.handle.deliver(activation())
    assert (await receive_activation(world.holder)).item.run_id == "run-1"


async def test_task_that_arrives_without_a_poll_loop_is_kept_for_the_next() -> None:
    world = await World.started()
    first = receiving_task(world)
    await settle()
    first.cancel()
    await settle()
    world.handle.deliver_while_paused(activation())
    await settle()
    inbox = world.record.activations
    assert (len(world.record.runs.open), len(inbox.undelivered), inbox.is_open) == (1, 1, False)
    await receive_activation(world.holder)
    assert not world.record.activations.undelivered


def serving_task(world: World, kind: str, dispatched: list[DispatchedItem]) -> asyncio.Future[Any]:
    """Return a loop that dispatches items until it is cancelled."""
    serve = world.holder.serve_activations if kind == "workflow" else world.holder.serve_activities
    return asyncio.ensure_future(
        serve(Q, lambda record: lambda item: dispatched.append(DispatchedItem(record, item)))
    )


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_task_that_arrives_while_its_poll_loop_is_cancelled_is_not_lost(kind: str, turns: int) -> None:
    world = await World.started()
    dispatched: list[DispatchedItem] = []
    first = serving_task(world, kind, dispatched)
    await settle()
    world.handle.deliver(activation() if kind == "workflow" else attempt())
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = serving_task(world, kind, dispatched)
    await settle()
    assert [ticket.item for ticket in dispatched] == [activation() if kind == "workflow" else attempt()]
    second.cancel()


async def test_undispatched_task_goes_to_the_next_poll_loop_with_a_new_token() -> None:
    world = await World.started()

    def fails(item: Activation) -> None:
        raise LookupError("no evaluator")

    first = asyncio.ensure_future(world.holder.serve_activations(Q, lambda _: fails))
    await settle()
    world.handle.deliver(activation())
    with pytest.raises(LookupError):
        await first
    (undelivered,) = world.tables.records[1].runs.open.values()
    assert not undelivered.is_dispatched
    ticket = await receive_activation(world.holder)
    assert ticket.item is undelivered.item
    assert ticket.token != undelivered.token
    with raises_stale():
        await world.holder.complete_activation(Q, 1, undelivered.token, done())
    await complete(world.holder, ticket, done())
    assert world.handle.completions == [done()]


async def test_dispatched_task_is_not_redelivered_when_its_poll_loop_ends() -> None:
    world = await World.started()
    world.handle.deliver(activation())

    ticket = await asyncio.ensure_future(receive_activation(world.holder))
    await settle()
    assert not world.record.activations.undelivered
    assert len(world.record.runs.open) == 1
    await complete(world.holder, ticket, done())


async def test_completed_activation_and_attempt_are_not_redelivered() -> None:
    world = await World.started()
    world.handle.deliver(activation())
    world.handle.deliver(attempt())

    async def hasty() -> None:
        ticket = await receive_activation(world.holder)
        await complete(world.holder, ticket, done())
        other = await receive_activity(world.holder)
        await world.holder.complete_activity(Q, other.generation, ActivityOk(other.item.token))

    await asyncio.ensure_future(hasty())
    await settle()
    assert not world.record.activations.undelivered
    assert not world.record.activities.undelivered


async def test_end_of_a_poll_loop_does_not_affect_a_newer_activation_of_the_run() -> None:
    world = await World.started()
    world.handle.deliver(activation())
    end = asyncio.Event()

    async def hasty() -> None:
        ticket = await receive_activation(world.holder)
        await complete(world.holder, ticket, done())
        await end.wait()

    dying = asyncio.ensure_future(hasty())
    await settle()
    world.handle.deliver(activation())
    newer = await receive_activation(world.holder)
    end.set()
    await dying
    await settle()
    assert not world.record.activations.undelivered
    await complete(world.holder, newer, done())
    assert len(world.handle.completions) == 2


async def test_newest_poll_loop_receives_tasks_instead_of_the_previous_one() -> None:
    world = await World.started()
    first: list[DispatchedItem] = []
    second: list[DispatchedItem] = []
    loops = [serving_task(world, "workflow", first)]
    await settle()
    world.handle.deliver(activation("run-0"))
    await settle()
    loops.append(serving_task(world, "workflow", second))
    await settle()
    assert world.handle.active_kinds == 2
    loops[0].cancel()
    for number in (1, 2):
        world.handle.deliver(activation(f"run-{number}"))
    await settle()
    assert [ticket.item.run_id for ticket in first] == ["run-0"]
    assert [ticket.item.run_id for ticket in second] == ["run-1", "run-2"]
    assert world.handle.active_kinds == 2
    loops[1].cancel()


async def test_activity_cancellation_is_delivered_to_the_poll_loop() -> None:
    world = await World.started()
    await dispatch(world, attempt())
    world.handle.deliver(ActivityCancel(b"a-1"))
    ticket = await receive_activity(world.holder)
    assert ticket.item == ActivityCancel(b"a-1")
    assert len(world.record.attempts.open) == 1


async def test_tasks_that_a_poll_loop_rejects_are_delivered_to_the_next_in_order() -> None:
    world = await World.started()
    dispatched: list[str] = []

    def until_two(item: Activation) -> None:
        if len(dispatched) == 2:
            raise LookupError("no evaluator")
        dispatched.append(item.run_id)

    serving_task = asyncio.ensure_future(world.holder.serve_activations(Q, lambda _: until_two))
    await settle()
    for number in range(5):
        world.handle.deliver(activation(f"run-{number}"))
    with pytest.raises(LookupError):
        await serving_task
    assert dispatched == ["run-0", "run-1"]
    serving_task = asyncio.ensure_future(
        world.holder.serve_activations(Q, lambda _: lambda item: dispatched.append(item.run_id))
    )
    await settle()
    assert dispatched == [f"run-{number}" for number in range(5)]
    await world.holder.unregister_worker(Q)
    with pytest.raises(Shutdown):
        await serving_task


async def test_cancelled_poll_loop_receives_no_further_tasks() -> None:
    world = await World.started()
    first: list[str] = []
    serving_task = asyncio.ensure_future(
        world.holder.serve_activations(Q, lambda _: lambda item: first.append(item.run_id))
    )
    await settle()
    serving_task.cancel()
    await settle()
    world.handle.deliver(activation("run-1"))
    await settle()
    assert first == []
    second: list[int] = []
    serving_task = asyncio.ensure_future(
        world.holder.serve_activations(Q, lambda record: lambda _: second.append(record.generation))
    )
    await settle()
    assert second == [1]
    serving_task.cancel()


def test_handle_inbox_without_a_poll_loop_keeps_tasks_in_flight() -> None:
    async def body() -> None:
        world = await World.started()
        await asyncio.gather(receive_activation(world.holder), given_later(world))
        for number in range(100):
            world.handle.deliver(activation(f"run-{number}"))
        await settle()
        world.handle.deliver_while_paused(activation("in flight"))
        await settle()
        inbox = world.tables.records[1].activations
        assert (len(inbox.undelivered), inbox.is_open) == (1, False)
        assert (await receive_activation(world.holder)).item.run_id == "in flight"
        for number in range(100):
            assert (await receive_activation(world.holder)).item.run_id == f"run-{number}"
        await world.holder.stop()

    async def given_later(world: World) -> None:
        await settle()
        world.handle.deliver(activation("first"))

    run(body)


async def test_handle_inbox_reports_whether_it_is_open_and_has_a_poll_loop() -> None:
    world = await World.started()
    inbox = world.record.activations
    assert (inbox.is_open, inbox.is_attended, inbox.received) == (True, False, 0)
    asking = receiving_task(world)
    await settle()
    assert (inbox.is_open, inbox.is_attended) == (True, True)
    world.handle.deliver(activation())
    await asking
    await settle()
    assert (inbox.is_open, inbox.is_attended, inbox.received) == (False, False, 1)


async def test_repr_of_handle_records_contains_no_payloads() -> None:
    world = await World.started()
    world.handle.deliver(attempt(arguments=(Payload(b'"secret"'),)))
    ticket = await receive_activity(world.holder)
    shown = repr(ticket) + repr(world.tables.records)
    assert "secret" not in shown
