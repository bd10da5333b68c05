"""Activities in sequence and concurrently: results, retries, timeouts, and every kind of activity."""

from __future__ import annotations

from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, RetryState, TimedOutError, TimeoutType

from . import activities
from .activities import ONCE
from .scenario import returns, scenario
from .world import World, attributes_of


@returns(8, 1)
@workflow.defn
def activities_run_in_sequence(number: int) -> int:
    for _ in range(3):
        number = activities.double(number)
    return number


@returns([10, 8, 6, 4, 2], [5, 4, 3, 2, 1], order="loose")
@workflow.defn
def gather_returns_results_in_order_of_starts(numbers: list[int]) -> list[int]:
    return workflow.gather(*[activities.double.start(number) for number in numbers])


@workflow.defn
def maps_activity(numbers: list[int]) -> list[int]:
    return workflow.map(activities.counts_concurrent_calls, numbers, limit=2)


@scenario("loose")
def map_limits_concurrency(world: World) -> None:
    assert world.run(maps_activity, [0, 1, 2, 3, 4, 5]) == [0, 1, 4, 9, 16, 25]
    assert activities.state.most_running == 2


@workflow.defn
def retries_until_attempt(attempt: int) -> int:
    return activities.fails_until_attempt(attempt)


@scenario()
def activity_retry_records_attempt_and_last_failure(world: World) -> None:
    handle = world.start(retries_until_attempt, 3)
    assert handle.result(timeout=60) == 3
    (started,) = attributes_of(handle.history(), "ACTIVITY_TASK_STARTED")
    assert started["attempt"] == 3
    assert started["lastFailure"]["message"] == "attempt 2 fails"
    assert started["lastFailure"]["applicationFailureInfo"]["type"] == "NotYet"


@scenario()
def activity_fails_run_when_maximum_attempts_are_reached(world: World) -> None:
    error = world.run_failing(retries_until_attempt, 99)
    assert isinstance(error, ActivityError)
    assert error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
    assert error.activity_type == "fails_until_attempt"
    assert isinstance(error.cause, ApplicationError)
    assert (error.cause.message, error.cause.type, list(error.cause.details)) == (
        "attempt 4 fails",
        "NotYet",
        [4],
    )


@workflow.defn
def calls_non_retryable_activity() -> None:
    activities.fails_without_retries("no money")


@scenario()
def non_retryable_activity_failure_is_not_retried(world: World) -> None:
    error = world.run_failing(calls_non_retryable_activity)
    assert error.retry_state == RetryState.NON_RETRYABLE_FAILURE
    assert list(error.cause.details) == [{"why": "broke"}]


@workflow.defn
def calls_with_non_retryable_error_type() -> None:
    policy = RetryPolicy(initial_interval=0.01, non_retryable_error_types=["LookupError"])
    activities.raises_value_error.options(retry_policy=policy)()


@scenario()
def non_retryable_error_type_of_policy_stops_retries(world: World) -> None:
    error = world.run_failing(calls_with_non_retryable_error_type)
    assert error.retry_state == RetryState.NON_RETRYABLE_FAILURE
    assert (error.cause.type, str(error.cause)) == ("LookupError", "nothing there")
    assert error.cause.cause.type == "ValueError"
    assert activities.state.calls == ["raised"]


@activity.defn(retry_policy=activities.QUICK)
def hangs_on_second_attempt() -> None:
    """Fail first: the time limit of a first attempt would be the limit of all attempts."""
    go = activities.gate("go")
    if activity.info().attempt == 1:
        raise ApplicationError("once more")
    go.wait(60)


@workflow.defn
def exceeds_timeout(which: str) -> None:
    match which:
        case "start_to_close":
            activities.opens_gate_and_waits_for_go.options(start_to_close_timeout=0.2)("slow")
        case "schedule_to_close":
            policy = RetryPolicy(initial_interval=5)
            activities.fails_until_attempt.options(schedule_to_close_timeout=0.4, retry_policy=policy)(99)
        case "running_out":
            hangs_on_second_attempt.options(schedule_to_close_timeout=0.4, start_to_close_timeout=None)()
        case "never_started":
            activities.double.options(schedule_to_close_timeout=0.2, task_queue="nobody-serves-this")(1)
        case "schedule_to_start":
            activities.double.options(schedule_to_start_timeout=0.2, task_queue="nobody-serves-this")(1)
        case "heartbeat":
            activities.stops_heartbeating()


@scenario()
def start_to_close_timeout_fails_attempt(world: World) -> None:
    error = world.run_failing(exceeds_timeout, "start_to_close")
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, TimedOutError)
    assert error.cause.type == TimeoutType.START_TO_CLOSE


@scenario()
def schedule_to_close_timeout_prevents_next_attempt_and_keeps_last_failure(world: World) -> None:
    error = world.run_failing(exceeds_timeout, "schedule_to_close")
    assert error.retry_state == RetryState.TIMEOUT


@scenario()
def schedule_to_close_timeout_ends_running_attempt(world: World) -> None:
    error = world.run_failing(exceeds_timeout, "running_out")
    assert error.cause.type == TimeoutType.SCHEDULE_TO_CLOSE


@scenario()
def schedule_to_close_timeout_fails_activity_that_no_worker_started(world: World) -> None:
    error = world.run_failing(exceeds_timeout, "never_started")
    assert isinstance(error.cause, TimedOutError)


@scenario()
def schedule_to_start_timeout_fails_activity_that_no_worker_started(world: World) -> None:
    error = world.run_failing(exceeds_timeout, "schedule_to_start")
    assert error.cause.type == TimeoutType.SCHEDULE_TO_START


@scenario()
def heartbeat_timeout_fails_activity_with_last_details(world: World) -> None:
    error = world.run_failing(exceeds_timeout, "heartbeat")
    assert error.cause.type == TimeoutType.HEARTBEAT
    assert list(error.cause.last_heartbeat_details) == ["half-way"]


@returns([2, 42])
@workflow.defn
def heartbeat_details_reach_next_attempt() -> list[Any]:
    return activities.resumes_from_heartbeat()


@workflow.defn
def calls_every_kind_of_activity() -> list[Any]:
    return [
        activities.increase(1),
        activities.Shop.greet("Ann"),
        workflow.execute_activity("double", 4, result_type=int, start_to_close_timeout=10),
        workflow.start_activity(activities.double, 5).result(),
        activities.double.options(activity_id="mine", summary="doubling")(6),
    ]


@scenario()
def coroutine_method_and_named_activities_return_results(world: World) -> None:
    handle = world.start(calls_every_kind_of_activity)
    assert handle.result(timeout=60) == [2, "Bob greets Ann", 8, 10, 12]
    scheduled = attributes_of(handle.history(), "ACTIVITY_TASK_SCHEDULED")
    assert [activity["activityId"] for activity in scheduled] == ["1", "2", "3", "4", "mine"]


@workflow.defn
def calls_externally_completed_activity() -> str:
    return activities.completed_by_test()


@scenario()
def activity_is_completed_by_client_with_task_token(world: World) -> None:

    handle = world.start(calls_externally_completed_activity)
    activities.wait_for_gate("token")
    world.client.get_activity_handle(token=activities.state.token).complete("from outside")
    assert handle.result(timeout=60) == "from outside"


@scenario()
def activity_is_failed_by_client_with_ids(world: World) -> None:
    handle = world.start(calls_externally_completed_activity)
    activities.wait_for_gate("token")
    activity_handle = world.client.get_activity_handle(
        workflow_id=handle.id, run_id=handle.run_id, activity_id="1"
    )
    activity_handle.fail(ApplicationError("declined", type="Bank", non_retryable=True))
    assert world.failure(handle).cause.type == "Bank"


@returns("second")
@workflow.defn
def caught_activity_error_does_not_fail_run() -> str:
    try:
        activities.fails_without_retries("first")
    except ActivityError:
        return activities.record_call("second")
    return "first"


@workflow.defn
def sleeps(seconds: float) -> bool:
    before = workflow.time()
    workflow.sleep(seconds)
    workflow.sleep(0)
    return workflow.time() - before >= seconds


@scenario()
def sleep_starts_timer_and_advances_workflow_time(world: World) -> None:
    assert world.run(sleeps, 0.05)


@workflow.defn
def overrides_retry_policy() -> int:
    return activities.fails_until_attempt.options(retry_policy=ONCE)(2)


@scenario()
def activity_call_options_override_retry_policy(world: World) -> None:
    assert world.run_failing(overrides_retry_policy).retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
