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
from hourglass.errors import ConnectionFailedError, ServiceError, StorageError, WorkflowNotFoundError

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


async def test_second_completion_is_not_sent() -> None:
    """Core would accept it and log an error, or take it for a newer activation: the holder counts and drops it."""
    world = await World.started()
    ticket = await taken(world)
    await complete(world.holder, ticket, done())
    with refused_as_stale():
        await complete(world.holder, ticket, done())
    assert world.handle.completions == [done()]
    assert world.counters.fenced == 1
    await world.holder.stop()


async def test_stale_completion_is_fenced() -> None:
    """A late evaluator cannot complete a newer activation of the same run."""
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
async def test_completion_of_another_generation_is_rejected(queue: str, generation: int) -> None:
    """The fence compares queue, generation and token."""
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


async def test_completion_on_a_closed_handle_raises() -> None:
    """Evaluators and executors of a closed handle get `WorkerNotRegistered`."""
    world = await World.started()
    ticket = await taken(world)
    await world.holder.stop()
    with refused_as_unregistered():
        await complete(world.holder, ticket, done())
    with refused_as_unregistered():
        await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))


async def test_completions_of_different_runs_are_concurrent() -> None:
    """A completion that waits in the engine delays no other run."""
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


async def test_completions_of_one_run_are_in_order() -> None:
    """The next completion of a run is sent when the previous call has returned."""
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


async def test_activity_result_is_sent_while_a_completion_waits() -> None:
    """Core may hold a completion until an attempt's result arrives: the result must not wait for it."""
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


async def test_completion_survives_cancellation_of_its_caller() -> None:
    """If an evaluator is killed during a completion, the engine still receives it."""
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


async def test_completion_that_never_returns_is_abandoned() -> None:
    """Completing a run that Core does not know never returns: the caller continues, and the call is left alone."""
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


async def test_rejected_completion_is_counted() -> None:
    """The handle fails the task of a rejected completion, reports it, and continues."""
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
async def test_broken_completion_recycles_the_handle(errors: list[BaseException]) -> None:
    """The caller gets no error, and the queue gets a new handle."""
    world = await World.started()
    world.handle.refusals.extend(errors)
    await complete(world.holder, await taken(world), done())
    await settle()
    assert world.counters.recycles == 1
    assert world.generation == 2
    await world.holder.stop()


async def test_completion_behind_a_pending_one_may_be_taken_at_once_or_fail() -> None:
    """Each caller continues, later completions of the run are still sent, and only a failure replaces the handle."""
    world = await World.started()
    handle = world.handle
    gate = handle.gates["run-1"] = asyncio.Event()
    completing = [asyncio.ensure_future(complete(world.holder, await taken(world), done())) for _ in range(3)]
    await settle()
    del handle.gates["run-1"]
    gate.set()
    await asyncio.gather(*completing)
    assert handle.completions == [done()] * 3
    assert world.counters.recycles == 0

    gate = handle.gates["run-1"] = asyncio.Event()
    completing = [asyncio.ensure_future(complete(world.holder, await taken(world), done())) for _ in range(3)]
    await settle()
    del handle.gates["run-1"]
    handle.refusals.extend([HandleBroken("gone"), HandleBroken("gone")])
    gate.set()
    await asyncio.gather(*completing)
    await settle()
    assert handle.completions == [done()] * 4, "after two failures the third completion arrives"
    assert world.counters.recycles == 1
    await world.holder.stop()


async def test_heartbeats_and_eviction_requests_reach_the_handle() -> None:
    """They are passed on at once, and need no answer."""
    world = await World.started()
    generation = await taken_attempt(world)
    world.holder.heartbeat(Q, generation, b"a-1", (Payload(b"1"),))
    world.holder.request_eviction(Q, generation, "run-1")
    assert (world.handle.beats, world.handle.evictions) == ([b"a-1"], ["run-1"])
    with refused_as_unregistered():
        world.holder.heartbeat(Q, generation, b"unknown", ())
    await world.holder.stop()


@pytest.mark.parametrize("error", [HandleBroken("gone"), RustPanic("oh")], ids=repr)
async def test_heartbeat_to_a_broken_handle_raises(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt hears that its worker is no longer registered, whatever the handle raises, and so does an evaluator."""

    def fails(*_: object) -> None:
        raise error

    world = await World.started()
    generation = await taken_attempt(world)
    monkeypatch.setattr(world.handle, "heartbeat", fails)
    monkeypatch.setattr(world.handle, "request_eviction", fails)
    with refused_as_unregistered():
        world.holder.heartbeat(Q, generation, b"a-1", ())
    with refused_as_unregistered():
        world.holder.request_eviction(Q, generation, "run-1")
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
async def test_unacknowledged_activity_result_is_resent(
    result: ActivityResult, request_: CompleteActivity
) -> None:
    """In an outage Core loses results silently: after 5 s they are also sent through the connection."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    generation = await taken_attempt(world)
    await world.holder.complete_activity(Q, generation, result)
    assert world.engine.connections[0].requests == [request_]
    assert world.counters.resent == 1
    world.handle.slow_results.set()
    await world.holder.stop()


async def test_resending_continues_until_a_connection_works() -> None:
    """A broken connection is tried again; an engine that does not know the attempt has its result already."""
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


async def test_resending_outlasts_its_caller() -> None:
    """The result is sent after minutes with a full disk or without a server."""
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


async def test_resending_ends_with_a_permanent_error(caplog: pytest.LogCaptureFixture) -> None:
    """A rejection that stays is logged once; the caller continues."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    connection = world.engine.connections[0]
    connection.answers.append(ServiceError("no", status="PERMISSION_DENIED"))
    generation = await taken_attempt(world)
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    await asyncio.sleep(100.0)  # on a loop whose time is virtual
    assert len(connection.requests) == 1
    assert "could not be sent again: ServiceError" in caplog.text
    world.handle.slow_results.set()
    await world.holder.stop()


@pytest.mark.parametrize("completion", [2.0, 30.0])
async def test_result_is_resent_whichever_limit_comes_first(completion: float) -> None:
    """The caller waits for `completion` seconds, the connection is used after `resend`: neither depends on the other."""
    world = await World.started(completion=completion, resend=5.0)
    world.handle.slow_results = asyncio.Event()
    connection = world.engine.connections[0]
    connection.answers.extend([ConnectionFailedError("down", status="UNAVAILABLE")] * 50)
    generation = await taken_attempt(world)
    loop = asyncio.get_running_loop()
    began = loop.time()
    ended: list[float] = []
    reporting = asyncio.ensure_future(world.holder.complete_activity(Q, generation, ActivityOk(b"a-1")))
    reporting.add_done_callback(lambda _: ended.append(loop.time() - began))
    await asyncio.sleep(4.9)
    assert connection.requests == []
    await asyncio.sleep(0.2)
    assert len(connection.requests) == 1
    await reporting
    assert ended == [pytest.approx(completion)]
    world.handle.slow_results.set()
    await world.holder.stop()


@pytest.mark.parametrize(
    ("result", "is_local"), [(ActivityOk(b"a-1"), True), (ActivityDeferred(b"a-1"), False)]
)
async def test_local_and_deferred_results_are_not_resent(result: ActivityResult, is_local: bool) -> None:
    """A server does not know local activities, and a deferred result is not a result."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    generation = await taken_attempt(world, is_local=is_local)
    await world.holder.complete_activity(Q, generation, result)
    assert world.engine.connections[0].requests == []
    world.handle.slow_results.set()
    await world.holder.stop()


async def test_activity_result_of_a_broken_handle_is_sent_by_the_connection() -> None:
    """The handle is replaced, and the result is not lost."""
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
