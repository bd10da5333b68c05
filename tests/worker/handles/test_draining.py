"""The drain of a handle: shut down, complete all tasks, then finalize with no call in flight, or abandon the handle."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hourglass._contract.handle import ActivityCancel, ActivityOk, AttemptFailed, HandleBroken
from hourglass._evaluator import events
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.events import Activation, ActivityCompleted
from hourglass.converter import ApplicationFailure, Failure

from .scripted import (
    Q,
    RustPanic,
    World,
    activation,
    attempt,
    complete,
    dispatch,
    done,
    eviction,
    raises_stale,
    start_poll,
)
from .virtual_loop import settle

pytestmark = pytest.mark.usefixtures("both_kinds_of_handles")


def elapsed() -> float:
    return asyncio.get_running_loop().time() - 1000


async def test_drain_shuts_down_before_it_fails_tasks() -> None:
    """The server redelivers a task that fails after the shutdown immediately, but one that fails before it only after
    10 s.
    """
    world = await World.started()
    asking = await start_poll(world)
    asking.cancel()
    world.handle.deliver(activation())
    await settle()
    await world.holder.unregister_worker(Q)
    await settle()
    assert world.handle.log == ["shutdown", "begin run-1", "end run-1", "finalize"]
    assert isinstance(world.handle.completions[0], TaskFailed)
    assert world.counters.forced_failures == 1


async def test_drain_fails_workflow_tasks_that_are_not_completed_within_two_seconds() -> None:
    world = await World.started()
    quick, slow = await dispatch(world, activation("quick"), activation("slow"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(1.9)
    await complete(world.holder, quick, done("quick"))
    assert len(world.handle.completions) == 1
    await world.holder.stop()
    assert elapsed() == pytest.approx(2.0)
    kinds = {completion.run_id: type(completion) for completion in world.handle.completions}
    assert kinds == {"quick": Succeeded, "slow": TaskFailed}
    with raises_stale():
        await complete(world.holder, slow, done("slow"))


async def test_drain_completes_evictions_successfully() -> None:
    world = await World.started()
    await dispatch(world, eviction("unanswered"), activation("busy"))
    world.handle.deliver(eviction("came-later"))
    await world.holder.stop()
    assert {completion.run_id: type(completion) for completion in world.handle.completions} == {
        "unanswered": Succeeded,
        "came-later": Succeeded,
        "busy": TaskFailed,
    }
    assert world.counters.forced_failures == 1


async def test_draining_handle_fails_newly_delivered_tasks() -> None:
    world = await World.started()
    await dispatch(world, activation("held"))
    await world.holder.recycle(Q, "test")
    old = world.engine.handles[0]
    old.deliver(activation("late"))
    old.deliver(attempt(b"late"))
    await settle()
    assert [completion.run_id for completion in old.completions] == ["late"]
    assert [type(result) for result in old.results] == [AttemptFailed]


async def test_drain_cancels_activities_after_the_graceful_time_and_then_fails_them() -> None:
    world = await World.started(config={"graceful_shutdown": 20.0})
    await dispatch(world, attempt(b"finishes"), attempt(b"stops"), attempt(b"hangs"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(19)
    await world.holder.complete_activity(Q, 1, ActivityOk(b"finishes"))
    assert world.cancels == []
    await asyncio.sleep(1)
    await settle()
    assert world.cancels == [(1, b"stops", "WORKER_SHUTDOWN"), (1, b"hangs", "WORKER_SHUTDOWN")]
    await world.holder.complete_activity(Q, 1, ActivityOk(b"stops"))
    await world.holder.stop()
    assert elapsed() == pytest.approx(21.0)
    assert [type(result) for result in world.handle.results] == [ActivityOk, ActivityOk, AttemptFailed]
    assert world.handle.finalized == 1


async def test_drain_of_a_recycled_handle_lets_activities_finish() -> None:
    world = await World.started()
    await dispatch(world, attempt(b"long"))
    await world.holder.recycle(Q, "test")
    old = world.engine.handles[0]
    old.deliver(ActivityCancel(b"long", "WORKER_SHUTDOWN"))
    await asyncio.sleep(1800)
    assert world.cancels == []
    assert world.states() == ["draining", "active"]
    world.holder.heartbeat(Q, 1, b"long", ())
    assert old.beats == [b"long"]
    await world.holder.complete_activity(Q, 1, ActivityOk(b"long"))
    await settle()
    assert old.finalized == 1


async def test_activity_cancellation_during_a_drain_is_delivered() -> None:
    """No poll loop receives it, so the holder delivers it."""
    world = await World.started()
    await dispatch(world, attempt(b"long"))
    await world.holder.recycle(Q, "test")
    world.engine.handles[0].deliver(ActivityCancel(b"long", "CANCELLED"))
    await settle()
    assert world.cancels == [(1, b"long", "CANCELLED")]


async def test_unregistering_shortens_the_drain_of_recycled_handles() -> None:
    world = await World.started()
    await dispatch(world, attempt(b"long"))
    await world.holder.recycle(Q, "test")
    await world.holder.unregister_worker(Q)
    await world.holder.stop()
    assert elapsed() == pytest.approx(1.0)
    assert world.cancels == [(1, b"long", "WORKER_SHUTDOWN")]
    assert [type(result) for result in world.engine.handles[0].results] == [AttemptFailed]


async def test_handle_is_finalized_after_its_pending_completions() -> None:
    world = await World.started()
    gate = world.handle.gates["run-1"] = asyncio.Event()
    (ticket,) = await dispatch(world, activation())
    completing = asyncio.ensure_future(complete(world.holder, ticket, done()))
    await settle()
    world.handle.open_runs.clear()  # so that its polls end before the call returns
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5)
    assert world.handle.finalized == 0
    gate.set()
    await completing
    await world.holder.stop()
    assert world.handle.finalized == 1
    assert world.counters.abandoned == 0


async def test_handle_that_ignores_its_shutdown_is_abandoned() -> None:
    world = await World.started()
    world.handle.ignores_shutdown = True
    await world.holder.stop()
    assert elapsed() == pytest.approx(6.0)
    assert (world.counters.abandoned, world.handle.finalized, world.handle.cancelled) == (1, 0, 0)
    assert world.engine.connections[0].closed == 1
    assert world.ended == [(Q, 1)]


async def test_handle_with_a_completion_that_never_returns_is_abandoned() -> None:
    world = await World.started()
    world.handle.gates["run-1"] = asyncio.Event()
    (ticket,) = await dispatch(world, activation())
    completing = asyncio.ensure_future(complete(world.holder, ticket, done()))
    await world.holder.stop()
    await completing
    assert (world.counters.abandoned, world.handle.finalized) == (1, 0)


async def test_handle_whose_finalize_hangs_is_abandoned() -> None:
    world = await World.started()
    world.handle.finalize_hangs = True
    await world.holder.recycle(Q, "test")
    await settle()
    assert world.states() == ["finalizing", "active"]
    await asyncio.sleep(36)
    assert world.states() == ["active"]
    assert world.counters.abandoned == 1


@pytest.mark.parametrize("error", [HandleBroken("in use"), ValueError("x"), RustPanic("oh")], ids=repr)
async def test_handle_whose_finalize_raises_is_abandoned(error: BaseException) -> None:
    world = await World.started()
    world.handle.finalize_error = error
    await world.holder.stop()
    assert (world.counters.abandoned, world.counters.closed) == (1, 0)


async def test_handle_whose_finalize_cannot_be_called_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = await World.started()

    def fails() -> None:
        raise LookupError("a bug of the handle")

    monkeypatch.setattr(world.handle, "finalize", fails)
    await world.holder.stop()
    assert (world.counters.abandoned, world.counters.closed) == (1, 0)
    assert world.engine.connections[0].closed == 1
    assert "a bug of the handle" in caplog.text


async def test_worker_stops_although_its_connection_fails_to_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = await World.started()

    async def fails() -> None:
        raise ConnectionResetError("peer")

    monkeypatch.setattr(world.engine.connections[0], "close", fails)
    await world.holder.stop()
    assert (world.counters.abandoned, world.counters.closed) == (0, 1)
    assert "did not close: ConnectionResetError" in caplog.text


@pytest.mark.parametrize("error", [HandleBroken("gone"), RustPanic("oh")], ids=repr)
async def test_drain_continues_if_the_handles_shutdown_raises(error: BaseException) -> None:
    world = await World.started()
    world.handle.shutdown_error = error
    await world.holder.unregister_worker(Q)
    assert not world.is_served()
    await world.holder.stop()
    assert world.handle.finalized == 1


async def test_sixth_abandoned_handle_raises_the_alarm_once() -> None:
    """After the alarm the count starts again."""
    world = await World.started()
    for number in range(6):
        world.handle.ignores_shutdown = True
        assert world.alarms == 0
        await world.holder.recycle(Q, str(number))
        await asyncio.sleep(31)
    assert world.counters.abandoned == 6
    assert world.alarms == 1
    world.handle.ignores_shutdown = True
    await world.holder.stop()
    assert (world.counters.abandoned, world.alarms) == (7, 1)


async def test_failing_on_handle_ended_callback_does_not_stop_a_drain() -> None:
    world = World()

    def raises(*_: object) -> None:
        raise RuntimeError("a bug of the callback")

    world.holder._events = replace(world.holder._events, ended=raises)
    await world.holder.start()
    await world.register()
    await world.holder.recycle(Q, "test")
    await world.holder.stop()
    assert world.counters.closed == 2


async def test_drain_fails_undispatched_tasks_without_waiting() -> None:
    """No evaluator has them, so the two seconds for evaluations do not apply."""
    world = await World.started()

    def fails(item: Activation) -> None:
        raise LookupError("no evaluator")

    loop = asyncio.ensure_future(world.holder.serve_activations(Q, lambda _: fails))
    await settle()
    world.handle.deliver(activation())
    await asyncio.gather(loop, return_exceptions=True)
    assert world.handle.completions == []
    await world.holder.unregister_worker(Q)
    await world.holder.stop()
    assert elapsed() == 0.0
    assert isinstance(world.handle.completions[0], TaskFailed)


def local_activity_resolved(run_id: str, event: Any = None) -> Activation:
    """The activation that reports the end of a local activity to its run."""
    return Activation(run_id=run_id, events=(event or ActivityCompleted(1, None, is_local=True),))


def local_attempt(token: bytes, run_id: str) -> Any:
    return attempt(token, is_local=True, run_id=run_id)


async def test_drain_evaluates_runs_with_local_activities_within_the_graceful_time() -> None:
    """Their tasks can only end after further evaluations and local activities."""
    world = await World.started(config={"graceful_shutdown": 20.0})
    handle = world.handle
    handle.waiting_runs.add("another")  # keeps the polls open until it is removed
    await dispatch(world, local_attempt(b"first", "run"))
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5)
    await world.holder.complete_activity(Q, 1, ActivityOk(b"first"))
    handle.deliver(local_activity_resolved("run"))
    await settle()
    (ticket,) = world.dispatched
    await asyncio.sleep(1.9)  # less than the two seconds of an evaluation, counted from its dispatch
    await complete(world.holder, ticket, done("run"))
    handle.deliver(local_attempt(b"second", "run"))
    await settle()
    await world.holder.complete_activity(Q, 1, ActivityOk(b"second"))
    handle.deliver(local_activity_resolved("run"))
    await settle()
    await complete(world.holder, world.dispatched[-1], done("run"))
    handle.waiting_runs.clear()
    handle.wake()
    await world.holder.stop()
    assert elapsed() == pytest.approx(6.9)
    assert [type(completion) for completion in handle.completions] == [Succeeded, Succeeded]
    assert [type(result) for result in handle.results] == [ActivityOk, ActivityOk]
    assert world.counters.forced_failures == 0


async def test_drain_evaluates_signals_only_for_runs_with_local_activities() -> None:
    world = await World.started(config={"graceful_shutdown": 20.0})
    await dispatch(world, local_attempt(b"out", "run"))
    await world.holder.unregister_worker(Q)
    world.handle.deliver(activation("run"))
    world.handle.deliver(activation("other"))
    await settle()
    assert [ticket.item.run_id for ticket in world.dispatched] == ["run"]
    assert [completion.run_id for completion in world.handle.completions] == ["other"]
    await complete(world.holder, world.dispatched[0], done("run"))
    await world.holder.complete_activity(Q, 1, ActivityOk(b"out"))
    await world.holder.stop()
    assert world.counters.abandoned == 0


async def test_drain_fails_the_task_of_a_stopped_local_activity_without_retry() -> None:
    """The engine would retry the local activity on this handle; the run sees no failure."""
    world = await World.started(config={"graceful_shutdown": 5.0})
    handle = world.handle
    await dispatch(
        world,
        local_attempt(b"stopped", "one"),
        local_attempt(b"endless", "two"),
        local_attempt(b"quick", "three"),
    )
    await world.holder.unregister_worker(Q)
    await asyncio.sleep(5.5)
    failure = Failure("stopped", ApplicationFailure(type="WorkerShutdown"))
    await world.holder.complete_activity(Q, 1, AttemptFailed(b"stopped", failure))
    await world.holder.complete_activity(Q, 1, ActivityOk(b"quick"))
    handle.deliver(local_activity_resolved("three"))
    handle.deliver(local_activity_resolved("one", events.ActivityFailed(1, failure, is_local=True)))
    await settle()
    assert [ticket.item.run_id for ticket in world.dispatched] == ["three"]
    await complete(world.holder, world.dispatched[0], done("three"))
    await asyncio.sleep(0.6)
    handle.deliver(local_activity_resolved("two", events.ActivityFailed(1, failure, is_local=True)))
    await world.holder.stop()
    assert {completion.run_id: type(completion) for completion in handle.completions} == {
        "three": Succeeded,
        "one": TaskFailed,
        "two": TaskFailed,
    }
    assert [result.is_last_here for result in handle.results if isinstance(result, AttemptFailed)] == [
        True,
        True,
    ]


async def test_drain_fails_tasks_that_no_evaluator_accepts() -> None:
    world = await World.started(config={"graceful_shutdown": 5.0})
    world.dispatches = False
    await dispatch(world, local_attempt(b"out", "run"))
    await world.holder.unregister_worker(Q)
    world.handle.deliver(activation("run"))
    world.handle.deliver(local_attempt(b"next", "run"))
    await settle()
    assert [type(completion) for completion in world.handle.completions] == [TaskFailed]
    assert [type(result) for result in world.handle.results] == [AttemptFailed]


async def test_handle_that_delivers_tasks_endlessly_is_abandoned() -> None:
    world = await World.started(config={"graceful_shutdown": 2.0})
    handle = world.handle
    handle.ignores_shutdown = True
    await world.holder.unregister_worker(Q)
    stopping = asyncio.ensure_future(world.holder.stop())
    for number in range(100):
        handle.deliver(attempt(f"{number}".encode(), is_local=True, run_id="run"))
        await asyncio.sleep(0.25)
        for ticket in world.dispatched:
            if ticket.item.token in handle.open_attempts:
                await world.holder.complete_activity(Q, 1, ActivityOk(ticket.item.token))
        if stopping.done():
            break
    assert stopping.done()
    assert elapsed() == pytest.approx(8.0, abs=0.3)
    assert world.counters.abandoned == 1
