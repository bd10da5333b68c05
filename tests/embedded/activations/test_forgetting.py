"""What is left of a run at a worker when it closes: an engine in the same process says so with the answer it takes."""

from __future__ import annotations

import asyncio

from hourglass._contract.workflows import QueryWorkflow, SignalWorkflow, TerminateWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.commands import Succeeded

from ..memory_world import World, settle, text
from ..store.store_conformance import activity

DONE = c.CompleteRun(text("done"))


async def given(world: World) -> e.Activation:
    await world.start()
    return await world.activation()


def evictions(activations: list[e.Activation]) -> list[str]:
    return [each.reason for one in activations for each in one.events if isinstance(each, e.RunEvicted)]


async def test_closed_run_is_forgotten_with_its_answer() -> None:
    """The engine says that it has forgotten the run, and gives out no eviction."""
    world = await World.new()
    run_id = (await given(world)).run_id
    assert world.handle.forgets(Succeeded(run_id, (DONE,)))
    assert world.handle.take_all() == []
    assert not world.has_out
    assert await world.outcome()
    await world.close()


async def test_plain_completion_of_a_closed_run_leads_to_eviction() -> None:
    """Without the calls of an engine in the same process a closed run is evicted as ever."""
    world = await World.new()
    run_id = (await given(world)).run_id
    await world.complete(run_id, DONE)
    assert evictions(world.handle.take_all()) == ["WORKFLOW_EXECUTION_ENDING"]
    assert world.has_out
    assert not world.handle.forgets(Succeeded(run_id))
    assert not world.has_out
    await world.close()


async def test_open_run_is_not_forgotten() -> None:
    """An answer that does not close its run says nothing of the kind, and the worker's next task brings only what is new."""
    world = await World.new()
    run_id = (await given(world)).run_id
    assert not world.handle.forgets(Succeeded(run_id, (activity(1),)))
    await world.call(SignalWorkflow(workflow_id="w", signal_name="s", request_id="1"))
    (activation,) = world.handle.take_all()
    assert [type(each) for each in activation.events] == [e.SignalReceived]
    await world.close()


async def test_rejected_close_leads_to_eviction() -> None:
    """A signal that came meanwhile keeps the run from closing: the worker must begin again, and is told so."""
    world = await World.new()
    run_id = (await given(world)).run_id
    await world.call(SignalWorkflow(workflow_id="w", signal_name="s", request_id="1"))
    assert not world.handle.forgets(Succeeded(run_id, (DONE,)))
    assert evictions(world.handle.take_all()) == ["UNHANDLED_COMMAND"]
    world.handle.forgets(Succeeded(run_id))
    (activation,) = world.handle.take_all()
    assert [type(each) for each in activation.events] == [e.RunStarted, e.SignalReceived]
    await world.close()


async def test_waiting_query_is_answered_before_the_run_is_forgotten() -> None:
    """Who asked while the last task was out is answered from what the worker still has, and then it may forget."""
    world = await World.new()
    run_id = (await given(world)).run_id
    asked = asyncio.ensure_future(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    await settle()
    assert not world.handle.forgets(Succeeded(run_id, (DONE,)))
    (activation,) = world.handle.take_all()
    (query,) = activation.events
    assert isinstance(query, e.QueryReceived)
    answer = c.AnswerQuery(query.id, text("here"))
    assert world.handle.forgets(Succeeded(run_id, (answer,)))
    assert await asked
    assert world.handle.take_all() == []
    await world.close()


async def test_run_terminated_from_outside_is_evicted() -> None:
    """The worker has nothing to answer then, so that an activation must tell it."""
    world = await World.new()
    run_id = (await given(world)).run_id
    world.handle.forgets(Succeeded(run_id, (activity(1),)))
    await world.call(TerminateWorkflow(workflow_id="w"))
    assert evictions(world.handle.take_all()) == ["WORKFLOW_EXECUTION_ENDING"]
    await world.close()


async def test_query_between_tasks_sees_the_same_state_live_and_replayed() -> None:
    """What the last answer led to is behind the worker already, but a query is asked where the last task stood."""
    world = await World.new()
    first = await given(world)
    world.handle.forgets(Succeeded(first.run_id, (activity(1),), (7,)))
    asked = asyncio.ensure_future(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    await settle()
    (live,) = world.handle.take_all()
    assert live.history_length == first.history_length
    world.handle.forgets(Succeeded(first.run_id))
    world.handle.request_eviction(first.run_id)
    world.handle.take_all()
    world.handle.forgets(Succeeded(first.run_id))
    again = asyncio.ensure_future(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    await settle()
    world.handle.take_all()
    world.handle.forgets(Succeeded(first.run_id, (activity(1),), (7,)))
    (replayed,) = world.handle.take_all()
    assert (replayed.history_length, replayed.flags) == (live.history_length, live.flags)
    world.handle.forgets(Succeeded(first.run_id))
    await asyncio.gather(asked, again, return_exceptions=True)
    await world.close()
