"""Activities on the in-memory engine: results, retries, timeouts, heartbeats, cancellation."""

from __future__ import annotations

import pytest
from tests.specs import made

from hourglass._contract.handle import (
    ActivityTask,
    AttemptCancelled,
)
from hourglass._contract.workflows import TerminateWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import ActivityFailure, CanceledFailure, Failure, Payload, TimeoutFailure
from hourglass.errors import RetryState, TimeoutType
from hourglass.workflow import ActivityCancellationType

from ..memory_world import World, app_failure, settle, start_waiting, text


def schedule(seq: int = 1, **more: object) -> c.ScheduleActivity:
    options: dict[str, object] = {"start_to_close_timeout": 10.0, **more}
    return made(c.ScheduleActivity, seq=seq, activity_id=str(seq), activity_type="act", **options)  # type: ignore[arg-type]


async def test_failed_attempt_is_retried_with_backoff(world: World) -> None:
    """Failures with a retry write no events."""
    await world.start_run(schedule(retry_policy=RetryRule()))
    for attempt, wait in ((1, 1.0), (2, 2.0), (3, 4.0)):
        task = await world.activity()
        assert task.attempt == attempt
        await world.fail_attempt(task, app_failure("no"))
        world.clock.advance(wait - 0.001)
        assert not list(world.engine.queues.waiting_attempts())
        world.clock.advance(0.001)
    task = await world.activity()
    assert task.attempt == 4
    await world.succeed(task, text("ok"))
    assert (await world.activation()).events == (e.ActivityCompleted(1, text("ok")),)
    assert world.kinds().count("ActivityTaskStarted") == 1


async def test_retry_is_stored_together_with_its_attempt(world: World) -> None:
    """A due retry is no change of its own: one change is stored when a worker receives the attempt."""
    await world.start_run(schedule(retry_policy=RetryRule()))
    task = await world.activity()
    await world.fail_attempt(task, app_failure("no"))
    poll = await start_waiting(world.handle.poll_activity())
    before = world.engine.runs.writes.appended
    world.clock.advance(1.0)
    second = await poll
    assert isinstance(second, ActivityTask)
    assert second.attempt == 2
    assert world.engine.runs.writes.appended == before + 1

    await world.fail_attempt(second, app_failure("no"))
    world.clock.advance(2.0)
    await settle()
    record = world.record()
    assert record.stored_wake_ns == record.wake_ns(world.clock.now_ns())
    before = world.engine.runs.writes.appended
    third = await world.activity()
    assert third.attempt == 3
    assert world.engine.runs.writes.appended == before + 1


ONCE = RetryRule(maximum_attempts=1)


@pytest.mark.parametrize(
    ("options", "started", "after", "kind", "message", "state"),
    [
        (
            {"start_to_close_timeout": 5.0, "retry_policy": ONCE},
            True,
            5,
            TimeoutType.START_TO_CLOSE,
            "activity StartToClose timeout",
            RetryState.MAXIMUM_ATTEMPTS_REACHED,
        ),
        (
            {"start_to_close_timeout": 50.0, "heartbeat_timeout": 3.0, "retry_policy": ONCE},
            True,
            3,
            TimeoutType.HEARTBEAT,
            "activity Heartbeat timeout",
            RetryState.MAXIMUM_ATTEMPTS_REACHED,
        ),
        (
            {"schedule_to_start_timeout": 4.0},
            False,
            4,
            TimeoutType.SCHEDULE_TO_START,
            "activity ScheduleToStart timeout",
            RetryState.TIMEOUT,
        ),
        (
            {"start_to_close_timeout": None, "schedule_to_close_timeout": 7.0},
            True,
            7,
            TimeoutType.SCHEDULE_TO_CLOSE,
            "Not enough time to schedule next retry before activity ScheduleToClose timeout,"
            " giving up retrying",
            RetryState.TIMEOUT,
        ),
        (
            {"start_to_close_timeout": 9.0, "schedule_to_close_timeout": 7.0},
            True,
            7,
            TimeoutType.SCHEDULE_TO_CLOSE,
            "Not enough time to schedule next retry before activity ScheduleToClose timeout,"
            " giving up retrying",
            RetryState.TIMEOUT,
        ),
        (
            {"start_to_close_timeout": 5.0, "schedule_to_close_timeout": 7.0, "retry_policy": ONCE},
            True,
            5,
            TimeoutType.START_TO_CLOSE,
            "activity StartToClose timeout",
            RetryState.MAXIMUM_ATTEMPTS_REACHED,
        ),
    ],
)
async def test_timeouts_have_the_messages_of_the_server(
    world: World,
    options: dict[str, object],
    started: bool,
    after: int,
    kind: TimeoutType,
    message: str,
    state: RetryState,
) -> None:
    await world.start_run(schedule(**options))
    if started:
        await world.activity()
    before = world.clock.now_ns()
    world.clock.advance_to_next()
    assert world.clock.now_ns() - before == after * 10**9
    (event,) = (await world.activation()).events
    assert isinstance(event, e.ActivityFailed)
    assert event.failure.message == "Activity task timed out"
    assert isinstance(event.failure.info, ActivityFailure)
    assert event.failure.info.retry_state is state
    assert event.failure.cause == Failure(message, TimeoutFailure(kind), source="Server")
    if started:
        assert (await world.cancel()).reason == "TIMED_OUT"


async def test_late_result_of_a_timed_out_attempt_is_dropped(world: World) -> None:
    await world.start_run(schedule(start_to_close_timeout=1.0))
    late = await world.activity()
    world.clock.advance(1)
    world.clock.advance(1)
    await world.cancel()
    now = await world.activity()
    assert now.attempt == 2
    await world.succeed(late, text("late"))
    assert world.connection.engine.current("w").run.task is None  # type: ignore[union-attr]
    await world.succeed(now, text("now"))
    assert (await world.activation()).events == (e.ActivityCompleted(1, text("now")),)


def _cancelled_immediately(seq: int = 1) -> e.ActivityCancelled:
    info = ActivityFailure(activity_type="act", activity_id=str(seq), retry_state=RetryState.CANCEL_REQUESTED)
    return e.ActivityCancelled(
        seq, Failure("Activity cancelled", info, cause=Failure(info=CanceledFailure()))
    )


async def test_try_cancel_resolves_immediately(world: World) -> None:
    """The running attempt is cancelled too; its end is recorded without an activation."""
    run_id = await world.start_run(schedule(1), c.StartTimer(1, 10**9))
    task = await world.activity()
    world.clock.advance(1)
    assert (await world.activation()).events == (e.TimerFired(1),)
    await world.complete(run_id, c.RequestCancelActivity(1))
    second = await world.activation()
    assert second.events == (_cancelled_immediately(),)
    assert second.history_length == world.seen[-2].history_length
    await world.complete(run_id)
    assert (await world.cancel()).reason == "CANCELLED"
    await world.handle.complete_activity(AttemptCancelled(task.token, Failure(info=CanceledFailure())))
    # The end wants a task, which has nothing to say and completes by itself.
    await settle()
    assert world.handle.stepper.next_activation() is None
    assert world.kinds()[-5:] == [
        "ActivityTaskStarted",
        "ActivityTaskCanceled",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskCompleted",
    ]


async def request_cancellation(world: World, kind: ActivityCancellationType) -> tuple[str, ActivityTask]:
    """Start a run and an attempt, and cancel the activity in a later task. Return the run id and the attempt."""
    run_id = await world.start_run(schedule(1, cancellation_type=kind), c.StartTimer(1, 10**9))
    task = await world.activity()
    world.clock.advance(1)
    await world.activation()
    await world.complete(run_id, c.RequestCancelActivity(1))
    return run_id, task


async def test_abandoned_activity_resolves_immediately(world: World) -> None:
    """The attempt continues, and its result is ignored."""
    run_id, task = await request_cancellation(world, ActivityCancellationType.ABANDON)
    assert (await world.activation()).events == (_cancelled_immediately(),)
    await world.complete(run_id)
    assert "ActivityTaskCancelRequested" not in world.kinds()
    await world.succeed(task)
    await settle()
    assert world.handle.stepper.next_activation() is None


async def test_activity_cancelled_in_its_scheduling_task_writes_no_events(world: World) -> None:
    run_id = await world.start_run(
        schedule(1), c.StartTimer(1, 10**9), c.CancelTimer(1), c.RequestCancelActivity(1)
    )
    assert (await world.activation()).events == (_cancelled_immediately(),)
    await world.complete(run_id, c.StartTimer(2, 10**9))
    assert world.kinds()[4:] == ["TimerStarted"]


async def test_attempt_of_a_terminated_run_is_cancelled(world: World) -> None:
    await world.start_run(schedule(1))
    task = await world.activity()
    await world.call(TerminateWorkflow(workflow_id="w"))
    cancel = await world.cancel()
    assert (cancel.token, cancel.reason) == (task.token, "NOT_FOUND")
    await world.succeed(task)
    assert world.kinds()[-1] == "WorkflowExecutionTerminated"


async def test_heartbeats_are_throttled_without_losing_the_last_details() -> None:
    world = await World.new(heartbeat_throttle=5.0)
    await world.start_run(schedule(start_to_close_timeout=100.0))
    task = await world.activity()
    record = world.record()

    def recorded() -> tuple[Payload, ...]:
        return record.run.activities[5].heartbeat_details

    for number in range(50):
        world.handle.heartbeat(task.token, (text(str(number)),))
    assert recorded() == (text("0"),)
    world.clock.advance(5)
    assert recorded() == (text("49"),)
    world.handle.heartbeat(task.token, (text("50"),))
    assert recorded() == (text("49"),)
    await world.fail_attempt(task, app_failure("no"))
    world.clock.advance(1)
    again = await world.activity()
    assert (again.attempt, again.heartbeat_details) == (2, (text("50"),))
