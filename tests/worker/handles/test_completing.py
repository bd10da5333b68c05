"""Completions: fenced, in order per run, concurrent across runs, never cancelled, and never awaited without a limit."""

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
    DispatchedItem,
    Q,
    RustPanic,
    World,
    activation,
    attempt,
    complete,
    done,
    raises_stale,
    raises_unregistered,
    receive_activation,
    receive_activity,
)
from .virtual_loop import settle

pytestmark = pytest.mark.usefixtures("both_kinds_of_handles")


async def received_activation(world: World, run_id: str = "run-1") -> DispatchedItem:
    world.handle.deliver(activation(run_id))
    return await receive_activation(world.holder)


async def generation_of_received_attempt(world: World, token: bytes = b"a-1", **more: Any) -> int:
    world.handle.deliver(attempt(token, **more))
    ticket = await receive_activity(world.holder)
    return ticket.generation


async def test_second_completion_of_a_task_is_not_sent_to_the_engine() -> None:
    """Core would log an error, or apply it to a newer activation of the run."""
    world = await World.started()
    ticket = await received_activation(world)
    await complete(world.holder, ticket, done())
    with raises_stale():
        await complete(world.holder, ticket, done())
    assert world.handle.completions == [done()]
    assert world.counters.fenced == 1


async def test_stale_completion_does_not_complete_a_newer_activation() -> None:
    world = await World.started()
    first = await received_activation(world)
    await complete(world.holder, first, done())
    second = await received_activation(world)
    with raises_unregistered():
        await complete(world.holder, first, done())
    assert len(world.handle.completions) == 1
    await complete(world.holder, second, done())
    assert len(world.handle.completions) == 2


@pytest.mark.parametrize(("queue", "generation"), [(Q, 7), ("other", 1)])
async def test_completion_for_another_queue_or_handle_generation_is_rejected(
    queue: str, generation: int
) -> None:
    world = await World.started()
    ticket = await received_activation(world)
    await generation_of_received_attempt(world)
    with raises_unregistered():
        await world.holder.complete_activation(queue, generation, ticket.token, done())
    with raises_unregistered():
        await world.holder.complete_activity(queue, generation, ActivityOk(b"a-1"))
    with raises_unregistered():
        world.holder.heartbeat(queue, generation, b"a-1", ())
    with raises_unregistered():
        world.holder.request_eviction(queue, generation, "run-1")
    assert world.counters.fenced == 2
    assert (world.handle.completions, world.handle.results, world.handle.beats) == ([], [], [])


async def test_completion_after_the_handle_closed_raises_unregistered() -> None:
    world = await World.started()
    ticket = await received_activation(world)
    await world.holder.stop()
    with raises_unregistered():
        await complete(world.holder, ticket, done())
    with raises_unregistered():
        await world.holder.complete_activity(Q, 1, ActivityOk(b"a-1"))


async def test_completions_of_different_runs_are_sent_concurrently() -> None:
    world = await World.started()
    world.handle.gates["run-1"] = asyncio.Event()
    first, second = await received_activation(world, "run-1"), await received_activation(world, "run-2")
    slow = asyncio.ensure_future(complete(world.holder, first, done("run-1")))
    await settle()
    await complete(world.holder, second, done("run-2"))
    assert not slow.done()
    world.handle.gates["run-1"].set()
    await slow
    assert world.handle.log == ["begin run-1", "begin run-2", "end run-2", "end run-1"]


async def test_completions_of_the_same_run_are_sent_in_order() -> None:
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    first = asyncio.ensure_future(complete(world.holder, await received_activation(world), done()))
    await settle()
    second = asyncio.ensure_future(complete(world.holder, await received_activation(world), done()))
    await settle()
    assert world.handle.log == ["begin run-1"]
    gate.set()
    await asyncio.gather(first, second)
    assert world.handle.log == ["begin run-1", "end run-1", "begin run-1", "end run-1"]


async def test_activity_result_is_sent_while_a_workflow_completion_is_pending() -> None:
    """Core may delay a completion until an attempt's result arrives, so the result must not wait for the completion."""
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    generation = await generation_of_received_attempt(world)
    waiting = asyncio.ensure_future(complete(world.holder, await received_activation(world), done()))
    await settle()
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    assert world.handle.results == [ActivityOk(b"a-1")]
    assert not waiting.done()
    gate.set()
    await waiting


async def test_completion_reaches_the_engine_if_its_caller_is_cancelled() -> None:
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    completing = asyncio.ensure_future(complete(world.holder, await received_activation(world), done()))
    await settle()
    completing.cancel()
    await settle()
    assert completing.cancelled()
    gate.set()
    await settle()
    assert world.handle.completions == [done()]
    assert world.handle.cancelled == 0


async def test_caller_continues_if_a_completion_never_returns() -> None:
    """Core never answers the completion of a run that it does not know."""
    world = await World.started()
    world.handle.gates["run-1"] = asyncio.Event()
    await complete(world.holder, await received_activation(world), done())
    assert world.counters.unanswered_completions == 1
    assert world.handle.calls == 1
    assert world.handle.cancelled == 0
    assert len(world.record.calls) == 1
    # The next completion of the run does not wait for it either.
    await complete(world.holder, await received_activation(world), done())
    assert world.handle.log.count("begin run-1") == 2
    world.handle.gates["run-1"].set()


async def test_rejected_completion_fails_its_task_without_a_recycle() -> None:
    world = await World.started()
    world.handle.rejections = 1
    await complete(world.holder, await received_activation(world), done())
    assert [type(completion) for completion in world.handle.completions] == [TaskFailed]
    assert world.counters.refused_completions == 1
    assert world.counters.recycles == 0


@pytest.mark.parametrize(
    "errors",
    [[HandleBroken("gone")], [RustPanic("oh")], [ValueError("a bug of the handle")]],
    ids=["broken", "panic", "bug"],
)
async def test_completion_that_raises_recycles_the_handle(errors: list[BaseException]) -> None:
    world = await World.started()
    world.handle.completion_errors.extend(errors)
    await complete(world.holder, await received_activation(world), done())
    await settle()
    assert world.counters.recycles == 1
    assert world.generation == 2


async def test_queued_completions_of_a_run_are_sent_after_success_or_failure_of_the_first() -> None:
    world = await World.started()
    handle = world.handle
    gate = handle.gates["run-1"] = asyncio.Event()
    completing = [
        asyncio.ensure_future(complete(world.holder, await received_activation(world), done()))
        for _ in range(3)
    ]
    await settle()
    del handle.gates["run-1"]
    gate.set()
    await asyncio.gather(*completing)
    assert handle.completions == [done()] * 3
    assert world.counters.recycles == 0

    gate = handle.gates["run-1"] = asyncio.Event()
    completing = [
        asyncio.ensure_future(complete(world.holder, await received_activation(world), done()))
        for _ in range(3)
    ]
    await settle()
    del handle.gates["run-1"]
    handle.completion_errors.extend([HandleBroken("gone"), HandleBroken("gone")])
    gate.set()
    await asyncio.gather(*completing)
    await settle()
    assert handle.completions == [done()] * 4, "after two failures the third completion arrives"
    assert world.counters.recycles == 1


async def test_holder_forwards_heartbeats_and_eviction_requests_to_the_handle() -> None:
    world = await World.started()
    generation = await generation_of_received_attempt(world)
    world.holder.heartbeat(Q, generation, b"a-1", (Payload(b"1"),))
    world.holder.request_eviction(Q, generation, "run-1")
    assert (world.handle.beats, world.handle.evictions) == ([b"a-1"], ["run-1"])
    with raises_unregistered():
        world.holder.heartbeat(Q, generation, b"unknown", ())


@pytest.mark.parametrize("error", [HandleBroken("gone"), RustPanic("oh")], ids=repr)
async def test_heartbeat_or_eviction_on_a_broken_handle_raises_unregistered(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    world = await World.started()
    generation = await generation_of_received_attempt(world)
    monkeypatch.setattr(world.handle, "heartbeat", fails)
    monkeypatch.setattr(world.handle, "request_eviction", fails)
    with raises_unregistered():
        world.holder.heartbeat(Q, generation, b"a-1", ())
    with raises_unregistered():
        world.holder.request_eviction(Q, generation, "run-1")


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
async def test_unacknowledged_activity_result_is_resent_through_the_connection(
    result: ActivityResult, request_: CompleteActivity
) -> None:
    """Core silently loses results during an outage."""
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    generation = await generation_of_received_attempt(world)
    await world.holder.complete_activity(Q, generation, result)
    assert world.engine.connections[0].requests == [request_]
    assert world.counters.resent == 1
    world.handle.slow_results.set()


async def test_activity_result_is_resent_until_a_connection_responds() -> None:
    """The response that the attempt is unknown means that the engine has its result."""
    world = await World.started()
    world.handle.result_errors.append(HandleBroken("gone"))
    connection = world.engine.connections[0]
    connection.answers.extend(
        [ConnectionFailedError("down", status="UNAVAILABLE"), WorkflowNotFoundError("x", status="NOT_FOUND")]
    )
    generation = await generation_of_received_attempt(world)
    old = world.handle
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    requests = [request for connection in world.engine.connections for request in connection.requests]
    assert len(requests) == 2
    old.open_attempts.clear()
    old.wake()


async def test_activity_result_is_resent_after_its_caller_returned() -> None:
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    connection = world.engine.connections[0]
    connection.answers.extend([StorageError("no room", status="RESOURCE_EXHAUSTED")] * 20)
    generation = await generation_of_received_attempt(world)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    assert loop.time() - began <= 30.0, "the caller waits at most 30 s"
    await asyncio.sleep(300.0)  # on a loop whose time is virtual
    assert len(connection.requests) == 21
    world.handle.slow_results.set()


async def test_permanent_error_ends_the_resending_of_a_result(caplog: pytest.LogCaptureFixture) -> None:
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    connection = world.engine.connections[0]
    connection.answers.append(ServiceError("no", status="PERMISSION_DENIED"))
    generation = await generation_of_received_attempt(world)
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    await asyncio.sleep(100.0)  # on a loop whose time is virtual
    assert len(connection.requests) == 1
    assert "could not be sent again: ServiceError" in caplog.text
    world.handle.slow_results.set()


async def test_activity_result_is_resent_before_its_completion_times_out() -> None:
    world = await World.started(completion=30.0, resend=5.0)
    world.handle.slow_results = asyncio.Event()
    connection = world.engine.connections[0]
    connection.answers.extend([ConnectionFailedError("down", status="UNAVAILABLE")] * 50)
    generation = await generation_of_received_attempt(world)
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
    assert ended == [pytest.approx(30.0)]
    world.handle.slow_results.set()


@pytest.mark.parametrize(
    ("result", "is_local"), [(ActivityOk(b"a-1"), True), (ActivityDeferred(b"a-1"), False)]
)
async def test_local_and_async_completed_activities_send_no_result_through_the_connection(
    result: ActivityResult, is_local: bool
) -> None:
    world = await World.started()
    world.handle.slow_results = asyncio.Event()
    generation = await generation_of_received_attempt(world, is_local=is_local)
    await world.holder.complete_activity(Q, generation, result)
    assert world.engine.connections[0].requests == []
    world.handle.slow_results.set()


async def test_activity_result_of_a_broken_handle_is_sent_through_the_connection() -> None:
    world = await World.started()
    world.handle.result_errors.append(HandleBroken("gone"))
    generation = await generation_of_received_attempt(world)
    old = world.handle
    await world.holder.complete_activity(Q, generation, ActivityOk(b"a-1"))
    old.open_attempts.clear()
    old.wake()
    sent = [request for connection in world.engine.connections for request in connection.requests]
    assert sent == [CompleteActivity(token=b"a-1")]
    await settle()
    assert world.generation == 2
