"""Recovery: another process takes over a store and repeats the work in progress according to the retry policies."""

from __future__ import annotations

from typing import Any

import pytest
from tests.polled import PolledEngine

from hourglass._contract import activities as ac
from hourglass._contract import workflows as wf
from hourglass._contract.handle import ActivityDeferred, ActivityTask, HandleConfig
from hourglass._embedded import VirtualClock
from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.store.store import AT_ONCE
from hourglass._embedded.transitions.transitions import is_backing_off, needs_recovery, recover
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass._history import events as h
from hourglass.converter import TimeoutFailure
from hourglass.errors import RetryState, TimeoutType, WorkflowAlreadyStartedError

from ..memory_world import World, activity, settle, text

DAY = 86_400
ONCE = RetryRule(maximum_attempts=1)


async def next_epoch(world: World, **more: Any) -> World:
    """Drop the process without closing it, and open its store with another one."""
    store, clock = world.engine.store, VirtualClock(world.clock.now_ns())
    world.crash()
    return await World.new(store=store, clock=clock, opened=True, **more)


async def test_task_in_backoff_is_offered_after_a_restart() -> None:
    """The next process may have fixed code; timers keep their times."""
    first = await World.new()
    sleeping = await first.start_run(c.StartTimer(1, 60 * 10**9), workflow_id="sleeping")
    parked = (await first.start("parked")).run_id
    for _ in range(2):
        await first.activation()
        await first.fail(parked)
        await first.activation()  # its eviction
        await first.complete(parked)
    record = first.engine.record(parked)
    assert record is not None
    assert is_backing_off(record.run, first.clock.now_ns())
    world = await next_epoch(first)
    assert (await world.activation()).run_id == parked
    await world.complete(parked, c.CompleteRun(text("fixed")))
    assert await world.outcome("parked") == wf.RunCompleted((text("fixed"),))
    asleep = world.record(run_id=sleeping)
    assert asleep.run.task is None


async def test_workflow_task_in_progress_times_out_after_a_restart() -> None:
    """Events equal the server's, and the next worker receives the complete history."""
    first = await World.new()
    run_id = await first.start_run(c.StartTimer(1, 10**9))
    first.clock.advance(1)
    assert (await first.activation()).events == (e.TimerFired(1),)
    world = await next_epoch(first)
    assert world.kinds()[-1] == "WorkflowTaskTimedOut"
    replayed = await world.activation()
    assert replayed.is_replaying
    await world.complete(run_id, c.StartTimer(1, 10**9))
    again = await world.activation()
    assert (again.events, again.is_replaying) == ((e.TimerFired(1),), False)
    await world.complete(run_id, c.CompleteRun(text("r")))
    assert await world.outcome() == wf.RunCompleted((text("r"),))


async def test_signal_held_during_a_task_is_delivered_after_a_restart() -> None:
    first = await World.new()
    run_id = await first.begin()
    await first.signal("s", "r")
    world = await next_epoch(first)
    assert world.kinds()[3:] == ["WorkflowTaskTimedOut", "WorkflowExecutionSignaled", "WorkflowTaskScheduled"]
    activation = await world.activation()
    assert [type(event) for event in activation.events] == [e.RunStarted, e.SignalReceived]
    await world.signal("s", "r")
    await world.complete(run_id, c.CompleteRun(text("r")))
    assert await world.outcome() == wf.RunCompleted((text("r"),))


async def test_attempt_in_progress_is_retried_with_its_heartbeat_details() -> None:
    """The loss counts as a heartbeat timeout."""
    first = await World.new()
    run_id = await first.start_run(activity())
    item = await first.activity()
    first.handle.heartbeat(item.token, (text("half"),))
    world = await next_epoch(first)
    assert world.engine.attempts.take(world.handle.poller) is None
    world.clock.advance(1)
    again = await world.activity()
    assert (again.attempt, again.heartbeat_details, again.run_id) == (2, (text("half"),), run_id)
    record = world.record()
    failure = record.run.activities[5].last_failure
    assert failure is not None
    assert "process" in failure.message
    assert failure.info == TimeoutFailure(TimeoutType.HEARTBEAT)


async def test_attempt_without_retries_fails_after_a_restart() -> None:
    first = await World.new()
    run_id = await first.start_run(activity(retry_policy=ONCE))
    await first.activity()
    world = await next_epoch(first)
    assert world.kinds()[-2:] == ["ActivityTaskTimedOut", "WorkflowTaskScheduled"]
    await world.activation()
    await world.complete(run_id, activity(retry_policy=ONCE))
    (failed,) = (await world.activation()).events
    assert isinstance(failed, e.ActivityFailed)
    assert failed.failure.info is not None
    assert failed.failure.info.retry_state is RetryState.MAXIMUM_ATTEMPTS_REACHED  # type: ignore[union-attr]
    assert world.engine.attempts.take(world.handle.poller) is None


async def test_undelivered_attempt_keeps_its_number_after_a_restart() -> None:
    first = await World.new()
    await first.start_run(activity(retry_policy=ONCE))
    world = await next_epoch(first)
    assert (await world.activity()).attempt == 1


async def test_attempt_is_reserved_until_its_worker_has_claimed_it() -> None:
    """Two workers survive the owner: the first claims nothing and loses its attempt, the second claims its attempt and
    keeps it.
    """
    first = await World.new(max_concurrent_activities=1)
    await first.start_run(activity(1), activity(2))
    other = PolledEngine(await first.connection.open_handle(HandleConfig(task_queue="q", identity="other")))
    mine = await first.activity()
    others = await other.poll_activity()
    assert isinstance(others, ActivityTask)
    world = await next_epoch(first, living=frozenset({"worker", "other"}), identity="new")
    engine = world.engine
    engine.claim([])
    engine.lose_unclaimed(frozenset({"worker"}))
    again = await world.activity()
    assert (again.activity_id, again.attempt) == (mine.activity_id, 2)
    engine.claim([others.token])
    engine.lose_unclaimed()
    assert engine.attempts.take(world.handle.poller) is None
    await world.call(ac.CompleteActivity(token=others.token, result=text("late")))


async def test_async_completion_survives_a_restart() -> None:
    """The activity is not retried, and keeps its timeout."""
    first = await World.new()
    run_id = await first.start_run(activity(1), activity(2, retry_policy=ONCE))
    tokens = {}
    for _ in range(2):
        item = await first.activity()
        tokens[item.activity_id] = item.token
        await first.handle.complete_activity(ActivityDeferred(item.token))
    world = await next_epoch(first)
    assert world.kinds()[-1] == "ActivityTaskScheduled"
    await world.call(ac.CompleteActivity(token=tokens["1"], result=text("late")))
    await world.activation()
    await world.complete(run_id, activity(1), activity(2, retry_policy=ONCE))
    assert (await world.activation()).events == (e.ActivityCompleted(1, text("late")),)
    await world.complete(run_id)
    world.clock.advance(60)
    (timed_out,) = (await world.activation()).events
    assert isinstance(timed_out, e.ActivityFailed)


async def test_timers_and_timeouts_elapse_during_downtime() -> None:
    first = await World.new()
    await first.start_run(c.StartTimer(1, DAY * 10**9))
    await first.start("late", execution_timeout=10.0)
    await first.activation()
    first.clock.advance(5)
    first.engine.runs.stop()
    store = first.engine.store
    later = VirtualClock(first.clock.now_ns() + DAY * 10**9)
    world = await World.new(store=store, clock=later, opened=True)
    assert world.kinds()[-2:] == ["TimerFired", "WorkflowTaskScheduled"]
    assert isinstance(await world.outcome("late"), wf.RunTimedOut)
    record = world.record("late")
    assert "WorkflowTaskTimedOut" not in [type(event.attributes).__name__ for event in record.events]


async def test_repeated_requests_are_recognised_after_a_restart() -> None:
    first = await World.new()
    run_id = (await first.start(request_id="a", signal_name="s")).run_id
    await first.signal("t", "b")
    world = await next_epoch(first)
    assert (await world.start(request_id="a", signal_name="s")).run_id == run_id
    await world.signal("t", "b")
    assert world.kinds().count("WorkflowExecutionSignaled") == 2
    with pytest.raises(WorkflowAlreadyStartedError):
        await world.start(request_id="other")
    activation = await world.activation()
    await world.complete(activation.run_id, c.CompleteRun(text("r")))
    await world.signal("t", "b")
    assert (await world.start(request_id="a", signal_name="s")).run_id == run_id


async def test_repeated_start_returns_the_first_run_of_a_chain() -> None:
    first = await World.new()
    run_id = await first.start_run(c.ContinueAsNew(workflow_type="W"), request_id="a")
    world = await next_epoch(first)
    current = world.record()
    assert current.run.run_id != run_id
    assert (await world.start(request_id="a")).run_id == run_id


async def test_continue_as_new_is_one_change() -> None:
    changes: list[int] = []

    class Counting(MemoryStore):
        def append(self, change: Any) -> int:
            changes.append(1 + len(change.also))
            return super().append(change)

    world = await World.new(store=Counting())
    await world.start_run(c.ContinueAsNew(workflow_type="W"))
    assert changes == [1, 1, 2]


async def test_event_times_never_go_back_after_a_restart() -> None:
    first = await World.new()
    run_id = await first.start_run(c.StartTimer(1, 10**9))
    early = VirtualClock(first.clock.now_ns() - DAY * 10**9)
    first.engine.runs.stop()
    world = await World.new(store=first.engine.store, clock=early, opened=True)
    await world.signal()
    record = world.record(run_id=run_id)
    times = [event.time_ns for event in record.events]
    assert times == sorted(times)


async def test_recovery_does_not_change_an_idle_run(world: World) -> None:
    run_id = await world.start_run(c.StartTimer(1, 10**9), activity())
    record = world.record(run_id=run_id)
    assert not needs_recovery(record.run)
    step = recover(record.run, "new", world.clock.now_ns())
    assert step.run is record.run
    assert (step.events, step.touched) == ((), frozenset())


async def test_all_runs_in_progress_are_recovered() -> None:
    """There are more than a slice of recovery contains."""
    first = await World.new(max_concurrent_workflow_tasks=1000)
    ids = {(await first.start(f"w{number}")).run_id for number in range(500)}
    for _ in range(250):
        await first.activation()
    assert len(first.engine.store.due(AT_ONCE, 1000)) == 500
    world = await next_epoch(first, max_concurrent_workflow_tasks=1000)
    assert {(await world.activation()).run_id for _ in range(500)} == ids
    await settle()


async def test_completed_activity_does_not_run_again_after_a_restart() -> None:
    first = await World.new()
    run_id = await first.start_run(activity())
    item = await first.activity()
    assert isinstance(item, ActivityTask)
    await first.succeed(item, text("r"))
    world = await next_epoch(first)
    record = world.record(run_id=run_id)
    assert isinstance(record.events[6].attributes, h.ActivityTaskCompleted)
    await world.activation()
    await world.complete(run_id, activity())
    assert (await world.activation()).events == (e.ActivityCompleted(1, text("r")),)
    assert world.engine.attempts.take(world.handle.poller) is None
