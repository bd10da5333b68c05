"""Runs on the in-memory engine: order of events, signals, queries, evictions, handles."""

from __future__ import annotations

import asyncio

import pytest
from tests.polled import PolledEngine
from tests.specs import made

from hourglass._contract import workflows as wf
from hourglass._contract.handle import HandleConfig, Shutdown
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass.errors import ConnectionFailedError, ServiceTimeoutError

from ..memory_world import World, settle, start_waiting, text

DAY = 86_400


def signal(name: str = "s", request_id: str = "") -> wf.SignalWorkflow:
    return wf.SignalWorkflow(workflow_id="w", signal_name=name, request_id=request_id)


async def test_first_activation_begins_with_run_started(world: World) -> None:
    world.clock.advance(5)
    started = await world.start(
        arguments=(text("a"),), memo={"m": text("1")}, signal_name="s", execution_timeout=60.0
    )
    activation = await world.activation()
    first, second = activation.events
    assert isinstance(first, e.RunStarted)
    assert (first.workflow_id, first.workflow_type, first.arguments) == ("w", "W", (text("a"),))
    assert (first.attempt, first.spec.memo, first.spec.execution_timeout) == (1, {"m": text("1")}, 60.0)
    assert first.first_execution_run_id == started.run_id
    assert second == e.SignalReceived("s")
    assert (activation.timestamp_ns, activation.history_length) == (world.clock.now_ns(), 4)
    assert (activation.is_replaying, activation.flags) == (False, ())


async def test_thirty_day_timer_fires_on_virtual_time(world: World) -> None:
    run_id = await world.start_run(c.StartTimer(1, 30 * DAY * 10**9))
    world.clock.advance(30 * DAY - 1)
    assert world.is_idle
    world.clock.advance_to_next()
    activation = await world.activation()
    assert activation.events == (e.TimerFired(1),)
    assert activation.timestamp_ns - world.seen[0].timestamp_ns == 30 * DAY * 10**9
    await world.complete(run_id, c.CompleteRun(text("done")))
    assert await world.outcome() == wf.RunCompleted((text("done"),))


async def test_signal_during_a_workflow_task_schedules_another_task(world: World) -> None:
    run_id = await world.begin()
    await world.call(signal())
    await world.complete(run_id, c.StartTimer(1, 10**9))
    assert world.kinds()[3:] == [
        "WorkflowTaskCompleted",
        "TimerStarted",
        "WorkflowExecutionSignaled",
        "WorkflowTaskScheduled",
    ]
    assert (await world.activation()).events == (e.SignalReceived("s"),)


async def test_close_with_unhandled_events_evicts_and_repeats_the_task(world: World) -> None:
    run_id = await world.begin()
    await world.call(signal())
    await world.complete(run_id, c.StartTimer(1, 10**9), c.CompleteRun(text("early")))
    evicted = await world.eviction()
    assert evicted.reason == "UNHANDLED_COMMAND"
    again = await world.activation()
    assert [type(event) for event in again.events] == [e.RunStarted, e.SignalReceived]
    assert not again.is_replaying
    assert "TimerStarted" not in world.kinds()
    await world.complete(run_id, c.CompleteRun(text("late")))
    assert await world.outcome() == wf.RunCompleted((text("late"),))


async def test_timer_that_fires_while_it_is_cancelled_is_recorded_as_cancelled(world: World) -> None:
    run_id = await world.start_run(c.StartTimer(1, 10**9))
    await world.call(signal())
    await world.activation()
    world.clock.advance(1)
    await world.complete(run_id, c.CancelTimer(1))
    assert world.kinds()[-1] == "TimerCanceled"
    assert "TimerFired" not in world.kinds()


async def test_failing_workflow_task_is_retried_with_backoff(world: World) -> None:
    """The first retry is immediate; later failures write no events."""
    run_id = await world.start_run(c.StartTimer(1, 10**9))
    world.clock.advance(1)
    for wait in (0.0, 10.0, 20.0):
        world.clock.advance(wait)
        activation = await world.activation()
        if activation.is_replaying:
            assert isinstance(activation.events[0], e.RunStarted)
            await world.complete(run_id, c.StartTimer(1, 10**9))
            activation = await world.activation()
        assert (activation.events, activation.is_replaying) == ((e.TimerFired(1),), False)
        await world.fail(run_id)
        evicted = await world.eviction()
        assert evicted.reason == "LANG_FAIL"
    assert world.kinds().count("WorkflowTaskFailed") == 1
    description = await world.call(wf.DescribeWorkflow(workflow_id="w"))
    assert description.task_attempt == 4


async def test_timed_out_workflow_task_is_redelivered(world: World) -> None:
    """The late completion is rejected."""
    run_id = await world.begin()
    world.clock.advance(10)
    assert world.kinds()[-1] == "WorkflowTaskTimedOut"
    await world.complete(run_id, c.CompleteRun(text("late")))
    (evicted,) = (await world.activation()).events
    assert evicted == e.RunEvicted("TASK_NOT_FOUND", "the engine rejected the completion of the task")
    await world.complete(run_id)
    assert isinstance((await world.activation()).events[0], e.RunStarted)
    await world.complete(run_id, c.CompleteRun(text("now")))
    assert await world.outcome() == wf.RunCompleted((text("now"),))


async def test_nondeterminism_is_detected_on_replay() -> None:
    world = await World.new(max_cached_workflows=0)
    run_id = await world.start_run(c.StartTimer(1, 10**9))
    await world.activation()  # evicted, for nothing is cached
    await world.complete(run_id)
    world.clock.advance(1)
    await world.activation()
    await world.complete(run_id, c.ScheduleActivity(seq=1, activity_id="1", activity_type="other"))
    evicted = await world.eviction()
    assert evicted.reason == "NONDETERMINISM"
    assert "timer number 1" in evicted.message
    assert "activity other" in evicted.message


async def test_invalid_command_fails_the_workflow_task(world: World) -> None:
    run_id = await world.begin()
    child = made(c.StartChildWorkflow, seq=1, workflow_id="c", workflow_type="C", cron_schedule="@dayly")
    await world.complete(run_id, child)
    evicted = await world.eviction()
    assert evicted.reason == "FATAL"
    assert world.kinds()[-1] == "WorkflowTaskFailed"
    failed = (await world.history())[-1]
    assert b"WORKFLOW_TASK_FAILED_CAUSE_BAD_START_CHILD_EXECUTION_ATTRIBUTES" in failed
    assert b"is invalid" in failed


async def test_duplicate_command_number_fails_the_workflow_task(world: World) -> None:
    await world.start_run(c.StartTimer(1, 1), c.StartTimer(1, 2))
    evicted = await world.eviction()
    assert "already in use" in evicted.message
    assert not world.is_idle


# --- queries ----------------------------------------------------------------------------------------------


async def test_query_waits_for_the_scheduled_workflow_task(world: World) -> None:
    run_id = (await world.start()).run_id
    call = await start_waiting(world.call(wf.QueryWorkflow(workflow_id="w", query_name="state")))
    assert isinstance((await world.activation()).events[0], e.RunStarted)
    await world.complete(run_id, c.StartTimer(1, 10**9))
    before = world.kinds()
    activation = await world.activation()
    (query,) = activation.events
    assert isinstance(query, e.QueryReceived)
    assert (query.name, activation.is_replaying) == ("state", True)
    await world.complete(run_id, c.AnswerQuery(query.id, text("fine")))
    assert await call == wf.QueryAnswer((text("fine"),))
    assert world.kinds() == before


async def test_query_without_a_worker_times_out(world: World) -> None:
    for queue, workflow_id in (("elsewhere", "v"), ("q", "w")):
        await world.start(workflow_id, task_queue=queue)
        with pytest.raises(
            ServiceTimeoutError, match="check that a worker of the workflow's task queue is running"
        ):
            await world.call(wf.QueryWorkflow(workflow_id=workflow_id, query_name="q", rpc_timeout=0.0))
    run_id = (await world.activation()).run_id
    await world.complete(run_id, c.StartTimer(1, 10**9))
    record = world.engine.runs.in_memory(run_id)
    assert record is not None
    call = asyncio.create_task(
        world.call(wf.QueryWorkflow(workflow_id="w", query_name="q", rpc_timeout=0.01))
    )
    with pytest.raises(ServiceTimeoutError):
        await call
    assert not record.queries
    assert not world.engine.queues.queried


# --- handles ----------------------------------------------------------------------------------------------


async def test_full_cache_evicts_the_least_recently_used_run() -> None:
    world = await World.new(max_cached_workflows=1)
    first = await world.start_run(c.StartTimer(1, 10**9), workflow_id="a")
    second = (await world.start("b")).run_id
    evicted = await world.activation()
    assert (evicted.run_id, type(evicted.events[0])) == (first, e.RunEvicted)
    await world.complete(first)
    assert (await world.activation()).run_id == second
    await world.complete(second)
    world.clock.advance(1)
    await world.activation()
    await world.complete(second)
    replayed = await world.activation()
    assert (replayed.run_id, replayed.is_replaying) == (first, True)


async def test_cached_runs_move_to_another_handle_at_shutdown(world: World) -> None:
    other = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="q", identity="other")))
    run_id = await world.start_run()
    await world.call(signal())
    assert other.stepper.next_activation() is None
    world.handle.initiate_shutdown()
    with pytest.raises(Shutdown):
        await world.handle.poll_activation()
    with pytest.raises(Shutdown):
        await world.handle.poll_activity()
    replayed = await other.poll_activation()
    assert (replayed.run_id, replayed.is_replaying) == (run_id, True)


async def test_shutdown_waits_for_activations_in_progress() -> None:
    world = await World.new()
    run_id = await world.begin()
    world.handle.initiate_shutdown()
    poll = await start_waiting(world.handle.poll_activation())
    assert not poll.done()
    await world.complete(run_id, c.StartTimer(1, 10**9))
    with pytest.raises(Shutdown):
        await poll
    await world.close()
    with pytest.raises(ConnectionFailedError):
        await world.start()


async def test_cancelled_poll_loses_no_activation(world: World) -> None:
    poll = await start_waiting(world.handle.poll_activation())
    poll.cancel()
    await world.start()
    await settle()
    assert isinstance((await world.activation()).events[0], e.RunStarted)
