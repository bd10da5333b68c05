"""Local activities on the embedded engine: attempts, backoff, timeouts, task heartbeats and crashes."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from tests.specs import made

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityDeferred,
    ActivityTask,
    AttemptCancelled,
    Shutdown,
)
from hourglass._contract.workflows import QueryWorkflow, TerminateWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure
from hourglass.errors import TimeoutType
from hourglass.workflow import ActivityCancellationType

from ..memory_world import World, app_failure, settle, start_waiting, text
from ..runs.test_recovery import next_epoch

Kind = ActivityCancellationType
TASK = ["WorkflowTaskScheduled", "WorkflowTaskStarted", "WorkflowTaskCompleted"]


def local(seq: int = 1, **more: Any) -> c.ScheduleLocalActivity:
    options = {"start_to_close_timeout": 60.0, **more}
    return made(c.ScheduleLocalActivity, seq=seq, activity_id=str(seq), activity_type="a", **options)


async def complete_run(world: World, run_id: str) -> None:
    await world.activation()
    await world.complete(run_id, c.CompleteRun(text("end")))
    await world.eviction()


async def next_event(world: World) -> e.Event:
    (event,) = (await world.activation()).events
    return event


async def signal_by_heartbeat(world: World) -> None:
    """Send a signal, which reaches the run with the next heartbeat of its workflow task."""
    await world.signal("s", "r")
    world.clock.advance(8)
    assert isinstance(await next_event(world), e.SignalReceived)


async def markers(world: World) -> list[dict[str, Any]]:
    details = []
    for event in map(json.loads, await world.history()):
        attributes = event.get("markerRecordedEventAttributes")
        if attributes is not None:
            details.append(json.loads(b64decode(attributes["details"]["data"]["payloads"][0]["data"])))
    return details


async def test_local_activity_with_short_backoff_retries_within_the_task(world: World) -> None:
    rule = RetryRule(initial_interval=2.0, maximum_attempts=3)
    run_id = await world.start_run(local(retry_policy=rule))
    for number in (1, 2):
        task = await world.activity()
        assert task.attempt == number
        await world.fail_attempt(task, app_failure("no"))
        await settle()
        assert world.is_idle, "only time can move things on"
        world.clock.advance(2.0 * number)
    task = await world.activity()
    assert task.attempt == 3
    await world.fail_attempt(task, app_failure("never"))
    assert await next_event(world) == e.ActivityFailed(1, app_failure("never"), is_local=True)
    await world.complete(run_id, c.CompleteRun(text("end")))
    assert [marker["attempt"] for marker in await markers(world)] == [3]


@pytest.mark.parametrize(
    "failure",
    [
        app_failure("no", non_retryable=True),
        app_failure("no", type="NEVER"),
        Failure("no", ApplicationFailure(type="never")),
    ],
)
async def test_nonretryable_failure_ends_a_local_activity(world: World, failure: Failure) -> None:
    await world.start_run(local(retry_policy=RetryRule(non_retryable_error_types=("Never",))))
    task = await world.activity()
    await world.fail_attempt(task, failure)
    assert await next_event(world) == e.ActivityFailed(1, failure, is_local=True)


@pytest.mark.parametrize(
    "limit", [TimeoutType.START_TO_CLOSE, TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.SCHEDULE_TO_START]
)
async def test_local_activity_fails_on_each_timeout(world: World, limit: TimeoutType) -> None:
    options = {f"{limit.name.lower()}_timeout": 3.0, "retry_policy": RetryRule(maximum_attempts=1)}
    await world.start_run(local(**options))
    task = None if limit is TimeoutType.SCHEDULE_TO_START else await world.activity()
    world.clock.advance(3)
    event = await next_event(world)
    assert isinstance(event, e.ActivityFailed)
    assert event.failure.message == "Local Activity timed out"
    assert event.failure.cause is not None
    assert event.failure.cause.info.type is limit  # type: ignore[union-attr]
    if task is not None:
        assert await world.cancel() == ActivityCancel(task.token, "TIMED_OUT")
        await world.succeed(task, text("too late"))


async def test_schedule_to_close_timeout_ends_the_backoff_of_a_local_activity(world: World) -> None:
    await world.start_run(local(schedule_to_close_timeout=5.0, retry_policy=RetryRule(initial_interval=7.0)))
    task = await world.activity()
    await world.fail_attempt(task, app_failure("no"))
    world.clock.advance(5)
    event = await next_event(world)
    assert isinstance(event, e.ActivityFailed)
    assert event.failure.message == "Local Activity timed out"


async def test_local_attempts_are_limited_by_slots() -> None:
    world = await World.new(max_concurrent_local_activities=1)
    await world.start_run(local(1), local(2))
    first = await world.activity()
    assert world.handle._local.next_item() is None
    await world.succeed(first)
    assert (await world.activity()).activity_id == "2"


@pytest.mark.parametrize("kind", Kind)
async def test_local_activity_is_cancelled_according_to_its_cancellation_type(
    world: World, kind: Kind
) -> None:
    run_id = await world.start_run(local(cancellation_type=kind))
    task = await world.activity()
    await signal_by_heartbeat(world)
    await world.complete(run_id, c.RequestCancelLocalActivity(1))
    if kind is not Kind.ABANDON:
        assert await world.cancel() == ActivityCancel(task.token, "CANCELLED")
    if kind is Kind.WAIT_CANCELLATION_COMPLETED:
        await world.handle.complete_activity(
            AttemptCancelled(task.token, Failure("stopped", CanceledFailure()))
        )
    event = await next_event(world)
    assert isinstance(event, e.ActivityCancelled)
    assert event.failure.message == "Local Activity cancelled"
    await world.complete(run_id, c.CompleteRun(text("end")))
    assert world.kinds().count("MarkerRecorded") == 1


async def test_local_activity_is_not_retried_after_cancellation(world: World) -> None:
    waiting = Kind.WAIT_CANCELLATION_COMPLETED
    run_id = await world.start_run(local(cancellation_type=waiting))
    task = await world.activity()
    await signal_by_heartbeat(world)
    await world.complete(run_id, c.RequestCancelLocalActivity(1))
    await world.cancel()
    await world.fail_attempt(task, app_failure("broke"))
    assert await next_event(world) == e.ActivityFailed(1, app_failure("broke"), is_local=True)


async def test_long_local_activity_heartbeats_its_workflow_task(world: World) -> None:
    """After 0.8 of the task timeout the task is completed and scheduled again, with events that arrived meanwhile."""
    run_id = await world.start_run(local())
    task = await world.activity()
    world.clock.advance(7.9)
    await world.signal("s", "r")
    assert world.kinds()[-1] == "WorkflowTaskStarted"
    world.clock.advance(0.1)
    event = await next_event(world)
    assert isinstance(event, e.SignalReceived)
    await world.complete(run_id)
    polling = asyncio.create_task(complete_run(world, run_id))
    for _ in range(3):
        await settle()
        world.clock.advance(8)
    await settle()
    await world.succeed(task, text("y"))
    await polling
    assert world.kinds()[1:] == [
        *TASK,
        "WorkflowExecutionSignaled",
        *TASK,
        *TASK,
        *TASK,
        *TASK,
        "MarkerRecorded",
        "WorkflowExecutionCompleted",
    ]


async def test_local_activity_result_without_a_started_task_is_delivered_with_the_next_task(
    world: World,
) -> None:
    run_id = await world.start_run(local())
    task = await world.activity()
    world.clock.advance(8)
    await world.succeed(task, text("y"))
    assert not world.handle._cache.ready.items
    await world.signal("s", "r")
    activation = await world.activation()
    assert [type(event) for event in activation.events] == [e.SignalReceived, e.ActivityCompleted]
    await world.complete(run_id, c.CompleteRun(text("end")))
    assert (await markers(world))[0]["activation_index"] == 0


async def test_query_is_answered_at_the_heartbeat_of_a_workflow_task(world: World) -> None:
    run_id = await world.start_run(local())
    task = await world.activity()
    query = await start_waiting(world.call(QueryWorkflow(workflow_id="w", query_name="q")))
    assert not world.handle._cache.ready.items
    world.clock.advance(8)
    query_event = await next_event(world)
    assert isinstance(query_event, e.QueryReceived)
    await world.complete(run_id, c.AnswerQuery(query_event.id, text("so")))
    assert (await query).result == (text("so"),)
    await world.succeed(task, text("y"))
    await complete_run(world, run_id)


async def test_unrecorded_local_activity_runs_again_after_a_crash() -> None:
    """Recorded results are replayed."""
    first = await World.new()
    run_id = await first.start_run(local(1))
    task = await first.activity()
    await first.succeed(task, text("one"))
    await first.activation()
    await first.complete(run_id, local(2))
    await first.activity()
    first.clock.advance(8)
    await settle()  # the heartbeat records the first
    world = await next_epoch(first)
    started = await world.activation()
    assert isinstance(started.events[0], e.RunStarted)
    await world.complete(run_id, local(1))
    assert await next_event(world) == e.ActivityCompleted(1, text("one"), is_local=True)
    await world.complete(run_id, local(2))
    again = await world.activity()
    assert (again.activity_id, again.attempt) == ("2", 1)
    await world.succeed(again, text("two"))
    assert await next_event(world) == e.ActivityCompleted(2, text("two"), is_local=True)


async def test_replay_delivers_local_results_in_their_original_activations() -> None:
    world = await World.new(max_cached_workflows=0)
    run_id = await world.start_run(local(1), local(2), local(3))
    tasks = [await world.activity() for _ in range(3)]
    await world.succeed(tasks[1], text("2"))
    assert await next_event(world) == e.ActivityCompleted(2, text("2"), is_local=True)
    for task in (tasks[2], tasks[0]):
        await world.succeed(task, text("x"))
    await world.complete(run_id)
    live = await world.activation()
    assert [event.seq for event in live.events] == [3, 1]  # type: ignore[union-attr]
    await world.complete(run_id, c.StartTimer(1, 1))
    assert isinstance(await next_event(world), e.RunEvicted)
    await world.complete(run_id)
    world.clock.advance(1)
    again = await world.activation()
    assert isinstance(again.events[0], e.RunStarted)
    await world.complete(run_id, local(1), local(2), local(3))
    replayed = await world.activation()
    assert [event.seq for event in replayed.events] == [2]  # type: ignore[union-attr]
    assert replayed.is_replaying
    await world.complete(run_id)
    replayed = await world.activation()
    assert [event.seq for event in replayed.events] == [3, 1]  # type: ignore[union-attr]
    assert replayed.timestamp_ns == live.timestamp_ns
    await world.complete(run_id, c.StartTimer(1, 1))
    assert await next_event(world) == e.TimerFired(1)


@pytest.mark.parametrize("change", [{"activity_type": "b"}, {"activity_id": "other"}, None])
async def test_changed_local_activity_is_nondeterminism(change: dict[str, str] | None) -> None:
    world = await World.new(max_cached_workflows=0)
    run_id = await world.start_run(local())
    task = await world.activity()
    await world.succeed(task, text("y"))
    await world.activation()
    await world.complete(run_id, c.StartTimer(1, 1))
    await next_event(world)
    await world.complete(run_id)
    world.clock.advance(1)
    await world.activation()
    if change is None:
        await world.complete(run_id, c.StartTimer(1, 1))
    else:
        await world.complete(run_id, msgspec.structs.replace(local(), **change))
        await world.activation()
        await world.complete(run_id, c.StartTimer(1, 1))
    evicted = await next_event(world)
    assert isinstance(evicted, e.RunEvicted)
    assert evicted.reason == "NONDETERMINISM"


async def test_terminating_a_run_cancels_its_local_activity(world: World) -> None:
    run_id = await world.start_run(local())
    task = await world.activity()
    await world.call(TerminateWorkflow(workflow_id="w"))
    assert isinstance(await next_event(world), e.RunEvicted)
    assert await world.cancel() == ActivityCancel(task.token, "CANCELLED")
    await world.complete(run_id)
    await world.succeed(task)


async def test_worker_shutdown_hands_over_pending_local_retries(world: World) -> None:
    await world.start_run(local())
    task = await world.activity()
    await world.fail_attempt(task, app_failure("no"))
    world.handle.initiate_shutdown()
    for poll in (world.handle.poll_activation, world.handle.poll_activity):
        with pytest.raises(Shutdown):
            await poll()
    await world.handle.finalize()
    assert world.kinds()[-2:] == ["WorkflowTaskCompleted", "WorkflowTaskScheduled"]


async def test_worker_shutdown_waits_for_running_local_attempts(world: World) -> None:
    run_id = await world.start_run(local())
    task = await world.activity()
    world.handle.initiate_shutdown()
    await world.succeed(task, text("y"))
    assert isinstance(await next_event(world), e.ActivityCompleted)
    await world.complete(run_id, c.CompleteRun(text("end")))
    assert isinstance(await next_event(world), e.RunEvicted)
    await world.complete(run_id)
    for poll in (world.handle.poll_activation, world.handle.poll_activity):
        with pytest.raises(Shutdown):
            await poll()
    await world.handle.finalize()


async def test_eviction_abandons_a_running_local_activity(world: World) -> None:
    """The next worker executes it again."""
    run_id = await world.start_run(local())
    task = await world.activity()
    world.handle.request_eviction(run_id)
    assert isinstance(await next_event(world), e.RunEvicted)
    assert isinstance(await world.cancel(), ActivityCancel)
    await world.succeed(task, text("lost"))
    await world.complete(run_id)
    assert isinstance((await world.activation()).events[0], e.RunStarted)
    await world.complete(run_id, local())
    assert isinstance(await world.activity(), ActivityTask)


async def test_local_activity_cannot_complete_asynchronously(world: World) -> None:
    await world.start_run(local())
    task = await world.activity()
    await world.handle.complete_activity(ActivityDeferred(task.token))
    event = await next_event(world)
    assert isinstance(event, e.ActivityFailed)
    assert "cannot be completed asynchronously" in event.failure.message


async def test_local_activity_without_a_timeout_fails_its_workflow_task(world: World) -> None:
    await world.start_run(local(start_to_close_timeout=None))
    evicted = await next_event(world)
    assert isinstance(evicted, e.RunEvicted)
    assert "has no timeout" in evicted.message
