"""Activities on the in-memory engine: results, retries, timeouts, heartbeats, cancellation."""

from __future__ import annotations

import pytest
from tests.specs import made

from hourglass._contract.activities import CompleteActivity, HeartbeatActivity
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityTask,
    AttemptCancelled,
)
from hourglass._contract.workflows import DescribeWorkflow, RunCompleted, TerminateWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass.converter import ActivityFailure, CanceledFailure, Failure, Payload, TimeoutFailure
from hourglass.errors import RetryState, ServiceError, TimeoutType
from hourglass.workflow import ActivityCancellationType

from ..memory_world import World, app_failure, settle, start_waiting, text


def schedule(seq: int = 1, **more: object) -> c.ScheduleActivity:
    options: dict[str, object] = {"start_to_close_timeout": 10.0, **more}
    return made(c.ScheduleActivity, seq=seq, activity_id=str(seq), activity_type="act", **options)  # type: ignore[arg-type]


async def test_sequence_of_activities_writes_the_history_of_temporal(world: World) -> None:
    run_id = await world.start_run(schedule(1))
    for seq in (1, 2, 3):
        task = await world.activity()
        assert (task.activity_id, task.attempt, task.workflow_id) == (str(seq), 1, "w")
        await world.succeed(task, text(f"r{seq}"))
        activation = await world.activation()
        assert activation.events == (e.ActivityCompleted(seq, text(f"r{seq}")),)
        assert not activation.is_replaying
        end = c.CompleteRun(text("done")) if seq == 3 else schedule(seq + 1)
        await world.complete(run_id, end)
    assert await world.outcome() == RunCompleted((text("done"),))
    step = [
        "ActivityTaskScheduled",
        "ActivityTaskStarted",
        "ActivityTaskCompleted",
        "WorkflowTaskScheduled",
        "WorkflowTaskStarted",
        "WorkflowTaskCompleted",
    ]
    first = ["WorkflowExecutionStarted", *step[3:]]
    assert world.kinds() == [*first, *step, *step, *step, "WorkflowExecutionCompleted"]


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


@pytest.mark.parametrize(
    ("rule", "failure", "state"),
    [
        (RetryRule(maximum_attempts=1), app_failure("no"), RetryState.MAXIMUM_ATTEMPTS_REACHED),
        (RetryRule(), app_failure("no", non_retryable=True), RetryState.NON_RETRYABLE_FAILURE),
        (RetryRule(non_retryable_error_types=("Oops",)), app_failure("no"), RetryState.NON_RETRYABLE_FAILURE),
        (RetryRule(initial_interval=60.0), app_failure("no"), RetryState.TIMEOUT),
    ],
)
async def test_final_failure_is_wrapped_like_cores(
    world: World, rule: RetryRule, failure: Failure, state: RetryState
) -> None:
    await world.start_run(schedule(retry_policy=rule, schedule_to_close_timeout=30.0))
    task = await world.activity()
    await world.fail_attempt(task, failure)
    info = ActivityFailure(
        activity_type="act",
        activity_id="1",
        identity="worker",
        scheduled_event_id=5,
        started_event_id=6,
        retry_state=state,
    )
    expected = e.ActivityFailed(1, Failure("Activity task failed", info, cause=failure))
    assert (await world.activation()).events == (expected,)


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


async def test_next_retry_delay_of_a_failure_replaces_the_backoff_once(world: World) -> None:
    await world.start_run(schedule())
    task = await world.activity()
    await world.fail_attempt(task, app_failure("no", next_retry_delay=77.0))
    before = world.clock.now_ns()
    assert world.clock.advance_to_next()
    assert world.clock.now_ns() - before == 77 * 10**9
    assert (await world.activity()).attempt == 2


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


async def test_schedule_to_close_timeout_ends_a_later_attempt(world: World) -> None:
    await world.start_run(schedule(start_to_close_timeout=5.0, schedule_to_close_timeout=7.0))
    before = world.clock.now_ns()
    await world.activity()
    world.clock.advance(5)
    assert (await world.cancel()).reason == "TIMED_OUT"
    world.clock.advance_to_next()
    assert (await world.activity()).attempt == 2
    world.clock.advance_to_next()
    assert world.clock.now_ns() - before == 7 * 10**9
    (event,) = (await world.activation()).events
    assert isinstance(event, e.ActivityFailed)
    assert event.failure.cause is not None
    assert event.failure.cause.info == TimeoutFailure(TimeoutType.SCHEDULE_TO_CLOSE)


async def test_heartbeat_details_reach_the_next_attempt() -> None:
    world = await World.new(heartbeat_throttle=0.0)
    await world.start_run(schedule(start_to_close_timeout=100.0, heartbeat_timeout=3.0))
    task = await world.activity()
    for _ in range(5):
        world.clock.advance(2)
        world.handle.heartbeat(task.token, (text("cursor"),))
    world.clock.advance(3)
    assert (await world.cancel()).reason == "TIMED_OUT"
    world.clock.advance(1)
    again = await world.activity()
    assert (again.attempt, again.heartbeat_details) == (2, (text("cursor"),))


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


async def test_wait_cancellation_completed_resolves_when_the_attempt_ends(world: World) -> None:
    _, task = await request_cancellation(world, ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)
    assert (await world.cancel()).token == task.token
    failure = Failure("cancelled", CanceledFailure((text("half"),)))
    await world.handle.complete_activity(AttemptCancelled(task.token, failure))
    (event,) = (await world.activation()).events
    assert isinstance(event, e.ActivityCancelled)
    assert event.failure.cause == Failure(info=CanceledFailure((text("half"),)))


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


async def test_activity_can_be_completed_asynchronously_by_token_or_ids(world: World) -> None:
    run_id = await world.start_run(schedule(1), schedule(2))
    first, second = await world.activity(), await world.activity()
    for task in (first, second):
        await world.handle.complete_activity(ActivityDeferred(task.token))
    answer = await world.call(HeartbeatActivity(token=first.token, details=(text("x"),)))
    assert not answer.cancel_requested
    await world.call(CompleteActivity(token=first.token, result=text("a")))
    await world.call(CompleteActivity(workflow_id="w", activity_id="2", failure=app_failure("no")))
    for bad in (
        CompleteActivity(token=first.token),
        CompleteActivity(token=b"junk"),
        CompleteActivity(workflow_id="w", activity_id="9"),
    ):
        with pytest.raises(ServiceError):
            await world.call(bad)
    assert (await world.activation()).events == (e.ActivityCompleted(1, text("a")),)
    await world.complete(run_id)
    description = await world.call(DescribeWorkflow(workflow_id="w"))
    (pending,) = description.pending_activities
    assert (pending.activity_id, pending.attempt, pending.state) == ("2", 2, "SCHEDULED")
    assert pending.last_failure == app_failure("no")


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
