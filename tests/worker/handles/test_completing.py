"""Completions: fenced, in order per run, at the same time across runs, never cancelled, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass._contract.activities import CompleteActivity
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    AttemptCancelled,
    AttemptFailed,
    HandleBroken,
)
from hourglass._evaluator.commands import TaskFailed
from hourglass.converter import CanceledFailure, Failure, Payload
from hourglass.errors import ConnectionFailedError, StorageError, WorkflowNotFoundError

from .scripted import (
    Q,
    RustPanic,
    Taken,
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

pytestmark = pytest.mark.usefixtures("both_kinds_of_handles")


async def taken(world: World, run_id: str = "run-1") -> Taken:
    world.handle.give(activation(run_id))
    return await take_activation(world.holder)


async def taken_attempt(world: World, token: bytes = b"a-1", **more: Any) -> int:
    world.handle.give(attempt(token, **more))
    ticket = await take_activity(world.holder)
    return ticket.generation


async def test_a_second_completion_is_not_sent() -> None:
    """Core says ok to it and logs an error, or takes it for a newer activation: it stays here, counted."""
    world = await World.started()
    ticket = await taken(world)
    await complete(world.holder, ticket, done())
    with refused_as_stale():
        await complete(world.holder, ticket, done())
    assert world.handle.completions == [done()]
    assert world.counters.fenced == 1
    await world.holder.stop()


async def test_a_stale_completion_is_not_taken_for_a_newer_activation() -> None:
    """An evaluator that wakes late cannot answer what came after, though the run is the same."""
    world = await World.started()
    first = await taken(world)
    await complete(world.holder, first, done())
    second = await taken(world)
    with refused_as_unregistered():
        await complete(world.holder, first, done())
    assert len(world.handle.completions) == 1
    await complete(world.holder, second, done())
    assert len(world.handle.completions) == 2
    await world.holder.stop()


@pytest.mark.parametrize(("queue", "generation"), [(Q, 7), ("other", 1)])
async def test_another_generation_or_queue_is_refused(queue: str, generation: int) -> None:
    """The fence is the generation and the token, of the queue that was meant."""
    world = await World.started()
    ticket = await taken(world)
    await taken_attempt(world)
    with refused_as_unregistered():
        await world.holder.complete_activation(queue, generation, ticket.token, done())
    with refused_as_unregistered():
        await world.holder.complete_activity(queue, generation, ActivityOk(b"a-1"))
    with refused_as_unregistered():
        world.holder.heartbeat(queue, generation, b"a-1", ())
    with refused_as_unregistered():
        world.holder.request_eviction(queue, generation, "run-1")
    assert world.counters.fenced == 2
    assert (world.handle.completions, world.handle.results, world.handle.beats) == ([], [], [])
    await world.holder.stop()


async def test_what_is_gone_says_so() -> None:
    """After a handle is closed its evaluators and executors hear that nobody is registered."""
    world = await World.started()
    ticket = await taken(world)
    await world.holder.stop()
    with refused_as_unregistered():
        await complete(world.holder, ticket, done())
    with refused_as_unregistered():
        await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))


async def test_completions_of_different_runs_go_at_the_same_time() -> None:
    """One that waits in the engine holds up no other run."""
    world = await World.started()
    world.handle.gates["run-1"] = asyncio.Event()
    first, second = await taken(world, "run-1"), await taken(world, "run-2")
    slow = asyncio.ensure_future(complete(world.holder, first, done("run-1")))
    await settle()
    await complete(world.holder, second, done("run-2"))
    assert not slow.done()
    world.handle.gates["run-1"].set()
    await slow
    assert world.handle.log == ["begin run-1", "begin run-2", "end run-2", "end run-1"]
    await world.holder.stop()


async def test_completions_of_one_run_go_in_order() -> None:
    """The next one of a run begins when the one before has returned."""
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    first = asyncio.ensure_future(complete(world.holder, await taken(world), done()))
    await settle()
    second = asyncio.ensure_future(complete(world.holder, await taken(world), done()))
    await settle()
    assert world.handle.log == ["begin run-1"]
    gate.set()
    await asyncio.gather(first, second)
    assert world.handle.log == ["begin run-1", "end run-1", "begin run-1", "end run-1"]
    await world.holder.stop()


async def test_an_attempts_end_goes_through_while_a_workflows_completion_waits() -> None:
    """Core may hold a completion until the end of an attempt arrives: that must never be stuck behind it."""
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    generation = await taken_attempt(world)
    waiting = asyncio.ensure_future(complete(world.holder, await taken(world), done()))
    await settle()
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    assert world.handle.results == [ActivityOk(b"a-1")]
    assert not waiting.done()
    gate.set()
    await waiting
    await world.holder.stop()


async def test_a_completion_is_not_cancelled_with_its_caller() -> None:
    """An evaluator may be killed while it completes: the engine gets its answer all the same."""
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    completing = asyncio.ensure_future(complete(world.holder, await taken(world), done()))
    await settle()
    completing.cancel()
    await settle()
    assert completing.cancelled()
    gate.set()
    await settle()
    assert world.handle.completions == [done()]
    assert world.handle.cancelled == 0
    await world.holder.stop()


async def test_nobody_waits_for_ever_for_a_completion() -> None:
    """Completing a run that Core does not know never returns: its caller goes on, the call is left alone."""
    world = await World.started()
    world.handle.gates["run-1"] = asyncio.Event()
    await complete(world.holder, await taken(world), done())
    assert world.counters.unanswered_completions == 1
    assert world.handle.calls == 1
    assert world.handle.cancelled == 0
    assert len(world.record.calls) == 1
    # The next of the same run does not wait behind it for ever either.
    await complete(world.holder, await taken(world), done())
    assert world.handle.log.count("begin run-1") == 2
    world.handle.gates["run-1"].set()
    await world.holder.stop()


async def test_a_refused_completion_is_counted() -> None:
    """The handle fails the task of a completion that its engine refuses, and says so; it goes on serving."""
    world = await World.started()
    world.handle.rejected = 1
    await complete(world.holder, await taken(world), done())
    assert [type(each) for each in world.handle.completions] == [TaskFailed]
    assert world.counters.refused_completions == 1
    assert world.counters.recycles == 0
    await world.holder.stop()


@pytest.mark.parametrize(
    "errors",
    [[HandleBroken("gone")], [RustPanic("oh")], [ValueError("a bug of the handle")]],
    ids=["broken", "panic", "bug"],
)
async def test_a_handle_that_cannot_complete_is_recycled(errors: list[BaseException]) -> None:
    """Whoever completes hears nothing of it; the queue gets a new handle."""
    world = await World.started()
    world.handle.refusals.extend(errors)
    await complete(world.holder, await taken(world), done())
    await settle()
    assert world.counters.recycles == 1
    assert world.generation == 2
    await world.holder.stop()


async def test_heartbeats_and_evictions_reach_the_handle() -> None:
    """They are told at once, and need no answer."""
    world = await World.started()
    generation = await taken_attempt(world)
    world.holder.heartbeat(Q, generation, b"a-1", (Payload(b"1"),))
    world.holder.request_eviction(Q, generation, "run-1")
    assert (world.handle.beats, world.handle.evictions) == ([b"a-1"], ["run-1"])
    with refused_as_unregistered():
        world.holder.heartbeat(Q, generation, b"unknown", ())
    await world.holder.stop()


@pytest.mark.parametrize(
    ("result", "request_"),
    [
        (ActivityOk(b"a-1", Payload(b"1")), CompleteActivity(token=b"a-1", result=Payload(b"1"))),
        (AttemptFailed(b"a-1", Failure("no")), CompleteActivity(token=b"a-1", failure=Failure("no"))),
        (
            AttemptCancelled(b"a-1", Failure("c", CanceledFailure((Payload(b"2"),)))),
            CompleteActivity(token=b"a-1", cancelled=True, cancelled_details=(Payload(b"2"),)),
        ),
    ],
)
async def test_an_attempts_end_that_is_not_taken_in_time_is_sent_again(
    result: ActivityResult, request_: CompleteActivity
) -> None:
    """In an outage Core loses results without a word: after 5 s they go through the connection too."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    generation = await taken_attempt(world)
    await world.holder.complete_activity(Q, generation, result)
    assert world.engine.connections[0].requests == [request_]
    assert world.counters.resent == 1
    world.handle.slow_results.set()
    await world.holder.stop()


async def test_sending_again_goes_on_until_a_connection_works() -> None:
    """A connection that is down is tried again; one that has never heard of the attempt has it already."""
    world = await World.started()
    world.handle.result_errors.append(HandleBroken("gone"))
    connection = world.engine.connections[0]
    connection.answers.extend(
        [ConnectionFailedError("down", status="UNAVAILABLE"), WorkflowNotFoundError("x", status="NOT_FOUND")]
    )
    generation = await taken_attempt(world)
    old = world.handle
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    requests = [request for each in world.engine.connections for request in each.requests]
    assert len(requests) == 2
    old.open_attempts.clear()
    old.wake()
    await world.holder.stop()


async def test_sending_again_outlasts_the_patience_of_its_caller() -> None:
    """A file whose disk is full for minutes, a server that is down: the end of the attempt arrives when it can."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    connection = world.engine.connections[0]
    connection.answers.extend([StorageError("no room", status="RESOURCE_EXHAUSTED")] * 20)
    generation = await taken_attempt(world)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    assert loop.time() - began <= 30.0, "its caller waits no longer than that"
    await asyncio.sleep(300.0)  # on a loop whose time is virtual
    assert len(connection.requests) == 21
    world.handle.slow_results.set()
    await world.holder.stop()


@pytest.mark.parametrize(
    ("result", "is_local"), [(ActivityOk(b"a-1"), True), (ActivityDeferred(b"a-1"), False)]
)
async def test_what_only_the_handle_knows_is_not_sent_again(result: ActivityResult, is_local: bool) -> None:
    """A server has never heard of a local activity, and a deferred end is no end."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    generation = await taken_attempt(world, is_local=is_local)
    await world.holder.complete_activity(Q, generation, result)
    assert world.engine.connections[0].requests == []
    world.handle.slow_results.set()
    await world.holder.stop()


async def test_the_end_of_an_attempt_on_a_broken_handle_is_sent_through_the_connection() -> None:
    """The handle is replaced, and the result is not lost with it."""
    world = await World.started()
    world.handle.result_errors.append(HandleBroken("gone"))
    generation = await taken_attempt(world)
    old = world.handle
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    old.open_attempts.clear()
    old.wake()
    sent = [request for each in world.engine.connections for request in each.requests]
    assert sent == [CompleteActivity(token=b"a-1")]
    await settle()
    assert world.generation == 2
    await world.holder.stop()
