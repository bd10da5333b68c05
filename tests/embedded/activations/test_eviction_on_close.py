"""Eviction of closed runs: a worker in the engine's process learns from its completion that the run has closed."""

from __future__ import annotations

import asyncio

from hourglass._contract.workflows import QueryWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.commands import Succeeded

from ..memory_world import World, start_waiting, text
from ..store.store_conformance import activity

DONE = c.CompleteRun(text("done"))


async def first_activation(world: World) -> e.Activation:
    await world.start()
    return await world.activation()


def evictions(activations: list[e.Activation]) -> list[str]:
    return [
        event.reason
        for activation in activations
        for event in activation.events
        if isinstance(event, e.RunEvicted)
    ]


async def test_worker_of_the_same_process_drops_a_closed_run_without_an_eviction(world: World) -> None:
    run_id = (await first_activation(world)).run_id
    assert world.handle.forgets(Succeeded(run_id, (DONE,)))
    assert world.handle.take_all() == []
    assert not world.has_out
    assert await world.outcome()


async def test_polling_worker_receives_an_eviction_for_a_closed_run(world: World) -> None:
    run_id = (await first_activation(world)).run_id
    await world.complete(run_id, DONE)
    assert evictions(world.handle.take_all()) == ["WORKFLOW_EXECUTION_ENDING"]
    assert world.has_out
    assert not world.handle.forgets(Succeeded(run_id))
    assert not world.has_out


async def test_open_run_stays_cached_after_a_completion(world: World) -> None:
    run_id = (await first_activation(world)).run_id
    assert not world.handle.forgets(Succeeded(run_id, (activity(1),)))
    await world.signal("s", "1")
    (activation,) = world.handle.take_all()
    assert [type(event) for event in activation.events] == [e.SignalReceived]


async def test_close_rejected_because_of_a_new_signal_evicts_the_run(world: World) -> None:
    run_id = (await first_activation(world)).run_id
    await world.signal("s", "1")
    assert not world.handle.forgets(Succeeded(run_id, (DONE,)))
    assert evictions(world.handle.take_all()) == ["UNHANDLED_COMMAND"]
    world.handle.forgets(Succeeded(run_id))
    (activation,) = world.handle.take_all()
    assert [type(event) for event in activation.events] == [e.RunStarted, e.SignalReceived]


async def test_pending_query_is_answered_before_a_closed_run_is_evicted(world: World) -> None:
    run_id = (await first_activation(world)).run_id
    call = await start_waiting(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    assert not world.handle.forgets(Succeeded(run_id, (DONE,)))
    (activation,) = world.handle.take_all()
    (query,) = activation.events
    assert isinstance(query, e.QueryReceived)
    answer = c.AnswerQuery(query.id, text("here"))
    assert world.handle.forgets(Succeeded(run_id, (answer,)))
    assert await call
    assert world.handle.take_all() == []


async def test_query_sees_the_same_history_length_live_and_in_replay(world: World) -> None:
    first = await first_activation(world)
    world.handle.forgets(Succeeded(first.run_id, (activity(1),), (7,)))
    query_of_live_run = await start_waiting(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    (live,) = world.handle.take_all()
    assert live.history_length == first.history_length
    world.handle.forgets(Succeeded(first.run_id))
    world.handle.request_eviction(first.run_id)
    world.handle.take_all()
    world.handle.forgets(Succeeded(first.run_id))
    query_of_replayed_run = await start_waiting(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    world.handle.take_all()
    world.handle.forgets(Succeeded(first.run_id, (activity(1),), (7,)))
    (replayed,) = world.handle.take_all()
    assert (replayed.history_length, replayed.flags) == (live.history_length, live.flags)
    world.handle.forgets(Succeeded(first.run_id))
    await asyncio.gather(query_of_live_run, query_of_replayed_run, return_exceptions=True)
