"""Polls belong to the holder: whoever waits for them may die at any instant, and nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._contract.handle import ActivityCancel, ActivityOk, Shutdown
from hourglass._evaluator.events import Activation
from hourglass.converter import Payload

from .scripted import (
    Q,
    Taken,
    World,
    activation,
    attempt,
    complete,
    done,
    refused_as_stale,
    take_activation,
    take_activity,
)
from .virtual_loop import run, settle


def asker(world: World, kind: str = "workflow") -> asyncio.Future[Taken]:
    """Somebody who polls and then dies: its task ends with what it got."""
    poll = take_activation if kind == "workflow" else take_activity
    return asyncio.ensure_future(poll(world.holder))


async def test_detached_receiver_loses_no_item() -> None:
    """Without a receiver the handle is paused, and the next receiver gets the items."""
    world = await World.started()
    first = asker(world)
    await settle()
    first.cancel()
    await settle()
    assert world.handle.polling == 1  # for activities, which have had no receiver yet
    world.handle.give(activation())
    assert (await take_activation(world.holder)).item.run_id == "run-1"
    await world.holder.stop()


async def test_item_without_a_receiver_is_kept() -> None:
    """An item that arrives without a poll loop counts as outstanding at once, and the next receiver gets it."""
    world = await World.started()
    first = asker(world)
    await settle()
    first.cancel()
    await settle()
    world.handle.bring(activation())
    await settle()
    inbox = world.record.activations
    assert (len(world.record.runs.open), len(inbox.kept), inbox.is_open) == (1, 1, False)
    await take_activation(world.holder)
    assert not world.record.activations.kept
    await world.holder.stop()


def serving(world: World, kind: str, given: list[Taken]) -> asyncio.Future[Any]:
    """A loop that dispatches what comes, until it is cancelled."""
    serve = world.holder.serve_activations if kind == "workflow" else world.holder.serve_activities
    return asyncio.ensure_future(serve(Q, lambda record: lambda item: given.append(Taken(record, item))))


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("kind", ["workflow", "activity"])
async def test_item_arriving_with_a_cancellation_is_not_lost(kind: str, turns: int) -> None:
    """In whichever turn of the loop the cancellation comes, one of the two poll loops dispatches the item."""
    world = await World.started()
    given: list[Taken] = []
    first = serving(world, kind, given)
    await settle()
    world.handle.give(activation() if kind == "workflow" else attempt())
    for _ in range(turns):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = serving(world, kind, given)
    await settle()
    assert [each.item for each in given] == [activation() if kind == "workflow" else attempt()]
    second.cancel()
    await world.holder.stop()


async def test_undispatched_item_goes_to_the_next_receiver() -> None:
    """The next one gets the item with another token, and only the completion of that one counts."""
    world = await World.started()

    def fails(item: Activation) -> None:
        raise LookupError("nothing would be at it")

    first = asyncio.ensure_future(world.holder.serve_activations(Q, lambda _: fails))
    await settle()
    world.handle.give(activation())
    with pytest.raises(LookupError):
        await first
    (kept,) = world.tables.records[1].runs.open.values()
    assert not kept.is_dispatched
    ticket = await take_activation(world.holder)
    assert ticket.item is kept.item
    assert ticket.token != kept.token
    with refused_as_stale():
        await world.holder.complete_activation(Q, 1, kept.token, done())
    await complete(world.holder, ticket, done())
    assert world.handle.completions == [done()]
    await world.holder.stop()


async def test_dispatched_item_is_not_delivered_again() -> None:
    """After the dispatch its poll loop may die: the evaluator has the item."""
    world = await World.started()
    world.handle.give(activation())

    ticket = await asyncio.ensure_future(take_activation(world.holder))
    await settle()
    assert not world.record.activations.kept
    assert len(world.record.runs.open) == 1
    await complete(world.holder, ticket, done())
    await world.holder.stop()


async def test_completed_item_is_not_delivered_again() -> None:
    """Neither an activation nor an attempt."""
    world = await World.started()
    world.handle.give(activation())
    world.handle.give(attempt())

    async def hasty() -> None:
        ticket = await take_activation(world.holder)
        await complete(world.holder, ticket, done())
        other = await take_activity(world.holder)
        await world.holder.complete_activity(Q, other.generation, ActivityOk(other.item.token))

    await asyncio.ensure_future(hasty())
    await settle()
    assert not world.record.activations.kept
    assert not world.record.activities.kept
    await world.holder.stop()


async def test_dead_loop_does_not_return_a_completed_item() -> None:
    """Also if the same run has a newer activation, which keeps its owner."""
    world = await World.started()
    world.handle.give(activation())
    end = asyncio.Event()

    async def hasty() -> None:
        ticket = await take_activation(world.holder)
        await complete(world.holder, ticket, done())
        await end.wait()

    dying = asyncio.ensure_future(hasty())
    await settle()
    world.handle.give(activation())
    newer = await take_activation(world.holder)
    end.set()
    await dying
    await settle()
    assert not world.record.activations.kept
    await complete(world.holder, newer, done())
    assert len(world.handle.completions) == 2
    await world.holder.stop()


async def test_newest_receiver_gets_the_items() -> None:
    """A new poll loop takes over, and the end of the former one does not pause the handle."""
    world = await World.started()
    first: list[Taken] = []
    second: list[Taken] = []
    loops = [serving(world, "workflow", first)]
    await settle()
    world.handle.give(activation("run-0"))
    await settle()
    loops.append(serving(world, "workflow", second))
    await settle()
    assert world.handle.polling == 2
    loops[0].cancel()
    for number in (1, 2):
        world.handle.give(activation(f"run-{number}"))
    await settle()
    assert [each.item.run_id for each in first] == ["run-0"]
    assert [each.item.run_id for each in second] == ["run-1", "run-2"]
    assert world.handle.polling == 2
    loops[1].cancel()
    await world.holder.stop()


async def test_cancellations_arrive_as_items() -> None:
    """Cancellations of attempts are items without a completion."""
    world = await World.started()
    world.handle.give(attempt())
    await take_activity(world.holder)
    world.handle.give(ActivityCancel(b"a-1"))
    ticket = await take_activity(world.holder)
    assert ticket.item == ActivityCancel(b"a-1")
    assert len(world.record.attempts.open) == 1
    await world.holder.stop()


async def test_burst_is_delivered_in_order() -> None:
    """Items that the receiver cannot accept now are kept for the next one."""
    world = await World.started()
    given: list[str] = []

    def until_two(item: Activation) -> None:
        if len(given) == 2:
            raise LookupError("nothing would be at it")
        given.append(item.run_id)

    serving = asyncio.ensure_future(world.holder.serve_activations(Q, lambda _: until_two))
    await settle()
    for number in range(5):
        world.handle.give(activation(f"run-{number}"))
    with pytest.raises(LookupError):
        await serving
    assert given == ["run-0", "run-1"]
    serving = asyncio.ensure_future(
        world.holder.serve_activations(Q, lambda _: lambda item: given.append(item.run_id))
    )
    await settle()
    assert given == [f"run-{number}" for number in range(5)]
    await world.holder.unregister_worker(Q)
    with pytest.raises(Shutdown):
        await serving
    await world.holder.stop()


async def test_cancelled_loop_receives_nothing_more() -> None:
    """Items are kept for the next poll loop."""
    world = await World.started()
    first: list[str] = []
    serving = asyncio.ensure_future(
        world.holder.serve_activations(Q, lambda _: lambda item: first.append(item.run_id))
    )
    await settle()
    serving.cancel()
    await settle()
    world.handle.give(activation("run-1"))
    await settle()
    assert first == []
    second: list[int] = []
    serving = asyncio.ensure_future(
        world.holder.serve_activations(Q, lambda record: lambda _: second.append(record.generation))
    )
    await settle()
    assert second == [1]
    serving.cancel()
    await world.holder.stop()


def test_inbox_without_a_receiver_pauses_the_handle() -> None:
    """Items on their way are kept, and the rest stays with the engine."""

    async def body() -> None:
        world = await World.started()
        await asyncio.gather(take_activation(world.holder), given_later(world))
        for number in range(100):
            world.handle.give(activation(f"run-{number}"))
        await settle()
        world.handle.bring(activation("on its way"))
        await settle()
        inbox = world.tables.records[1].activations
        assert (len(inbox.kept), inbox.is_open) == (1, False)
        assert (await take_activation(world.holder)).item.run_id == "on its way"
        for number in range(100):
            assert (await take_activation(world.holder)).item.run_id == f"run-{number}"
        await world.holder.stop()

    async def given_later(world: World) -> None:
        await settle()
        world.handle.give(activation("first"))

    run(body)


async def test_inbox_state_for_the_watchdog() -> None:
    """The watchdog sees a handle that takes no work, and a missing poll loop."""
    world = await World.started()
    inbox = world.record.activations
    assert (inbox.is_open, inbox.is_attended, inbox.received) == (True, False, 0)
    asking = asker(world)
    await settle()
    assert (inbox.is_open, inbox.is_attended) == (True, True)
    world.handle.give(activation())
    await asking
    await settle()
    assert (inbox.is_open, inbox.is_attended, inbox.received) == (False, False, 1)
    await world.holder.stop()


async def test_repr_contains_no_payloads() -> None:
    """Entries and records can be logged."""
    world = await World.started()
    world.handle.give(attempt(arguments=(Payload(b'"secret"'),)))
    ticket = await take_activity(world.holder)
    shown = repr(ticket) + repr(world.tables.records)
    assert "secret" not in shown
    await world.holder.stop()
