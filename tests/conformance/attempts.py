"""Attempts of activities: retry delays, timeouts, heartbeat details, activity info, completion by a client."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    CancelledError,
    RetryState,
    ServiceError,
    TimedOutError,
    TimeoutType,
)

from . import activities
from .scenario import returns, scenario, scenarios
from .world import World, attributes_of, error_chain, event_types

QUICK = RetryPolicy(initial_interval=0.02, maximum_attempts=3)


@activity.defn(retry_policy=RetryPolicy(initial_interval=60, maximum_attempts=3))
def fails_with_next_retry_delay() -> int:
    attempt = activity.info().attempt
    if attempt < 3:
        raise ApplicationError("soon", next_retry_delay=timedelta(seconds=0.02))
    return attempt


@activity.defn(retry_policy=QUICK, start_to_close_timeout=0.3)
def exceeds_timeout_on_first_attempt() -> int:
    go = activities.gate("never")
    if activity.info().attempt == 1:
        go.wait(60)
    return activity.info().attempt


@activity.defn(retry_policy=QUICK, heartbeat_timeout=0.4)
def loses_heartbeat_on_first_attempt() -> list[Any]:
    """The first attempt sends one heartbeat with details and hangs; the second returns these details."""
    go = activities.gate("never")
    if activity.info().attempt == 1:
        activity.heartbeat("page", 7)
        go.wait(60)
    return list(activity.info().heartbeat_details)


@returns(3, "fails_with_next_retry_delay", name="activity_retry_uses_next_retry_delay_of_failure")
@returns(["page", 7], "loses_heartbeat_on_first_attempt", name="heartbeat_details_survive_heartbeat_timeout")
@returns([2, 4], "two of one name", name="activity_id_can_be_reused_after_completion")
@workflow.defn
def calls_activity(case: str) -> Any:
    match case:
        case "fails_with_next_retry_delay":
            return fails_with_next_retry_delay()
        case "exceeds_timeout_on_first_attempt":
            return exceeds_timeout_on_first_attempt()
        case "loses_heartbeat_on_first_attempt":
            return loses_heartbeat_on_first_attempt()
        case "unknown":
            return workflow.execute_activity(
                "nobody-has-this", start_to_close_timeout=5, retry_policy=RetryPolicy(maximum_attempts=1)
            )
        case "two of one name":
            first = activities.double.options(activity_id="same").start(1)
            return [first.result(), activities.double.options(activity_id="same")(2)]
    return None


@scenario()
def activity_retries_after_start_to_close_timeout(world: World) -> None:
    """The started event of the second attempt records the timeout of the first."""
    handle = world.start(calls_activity, "exceeds_timeout_on_first_attempt")
    assert handle.result(timeout=60) == 2
    (started,) = attributes_of(handle.history(), "ACTIVITY_TASK_STARTED")
    assert started["lastFailure"]["timeoutFailureInfo"]["timeoutType"] == "TIMEOUT_TYPE_START_TO_CLOSE"


@scenario(loud=True)
def unknown_activity_type_fails_with_its_name(world: World) -> None:
    error = world.run_failing(calls_activity, "unknown")
    assert "nobody-has-this" in str(error.cause)


@activity.defn
def hangs_on_every_attempt(fails_first: bool) -> None:
    """Hang on every attempt; with `fails_first` the first one fails instead."""
    go = activities.gate("never")
    if fails_first and activity.info().attempt == 1:
        raise ApplicationError("once more", type="First")
    go.wait(60)


@workflow.defn
def activity_times_out(how: str, fails_first: bool) -> None:
    limits: dict[str, Any] = {
        "attempt": {"start_to_close_timeout": 0.3},
        "silence": {"heartbeat_timeout": 0.3},
    }[how]
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=2)
    hangs_on_every_attempt.options(retry_policy=policy, **limits)(fails_first)


@scenarios(
    start_to_close_timeout_has_previous_failure_as_cause=(
        "attempt",
        True,
        ["ActivityError", "TimedOutError", "ApplicationError"],
    ),
    heartbeat_timeout_has_previous_failure_as_cause=(
        "silence",
        True,
        ["ActivityError", "TimedOutError", "ApplicationError"],
    ),
    start_to_close_timeout_has_previous_timeout_as_cause=(
        "attempt",
        False,
        ["ActivityError", "TimedOutError", "TimedOutError"],
    ),
)
def causes_of_timeout(world: World, how: str, fails_first: bool) -> list[str]:
    """Return the error classes in the chain of causes of an activity that timed out on its last attempt."""
    error = world.run_failing(activity_times_out, how, fails_first)
    assert error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
    return [error_fields["class"] for error_fields in error_chain(error)]


@workflow.defn
def awaits_external_completion(seconds: float | None) -> str:
    return activities.completed_by_test.options(heartbeat_timeout=seconds, retry_policy=activities.ONCE)()


@scenario()
def activity_is_completed_by_workflow_id_and_activity_id(world: World) -> None:
    handle = world.start(awaits_external_completion, None)
    activities.wait_for_gate("token")
    world.client.get_activity_handle(workflow_id=handle.id, activity_id="1").complete("by ids")
    assert handle.result(timeout=60) == "by ids"


@scenario()
def completing_a_completed_activity_is_rejected(world: World) -> None:
    handle = world.start(awaits_external_completion, None)
    activities.wait_for_gate("token")
    activity_handle = world.client.get_activity_handle(token=activities.state.token)
    activity_handle.complete("one")
    with pytest.raises(ServiceError):
        activity_handle.complete("two")
    assert handle.result(timeout=60) == "one"


@scenario()
def external_heartbeat_details_are_in_heartbeat_timeout(world: World) -> None:
    handle = world.start(awaits_external_completion, 1)
    activities.wait_for_gate("token")
    assert world.client.get_activity_handle(token=activities.state.token).heartbeat("half") is False
    error = world.failure(handle)
    assert isinstance(error.cause, TimedOutError)
    assert error.cause.type == TimeoutType.HEARTBEAT
    assert list(error.cause.last_heartbeat_details) == ["half"]


@workflow.defn
def cancels_external_activity() -> list[str]:
    kind = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    task = activities.completed_by_test.options(cancellation_type=kind).start()
    workflow.Channel("stop", str).receive()
    task.cancel()
    error = task.exception()
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, CancelledError)
    return [type(error.cause).__name__, *error.cause.details]


@scenario()
def external_activity_reports_cancellation_with_details(world: World) -> None:
    handle = world.start(cancels_external_activity)
    activities.wait_for_gate("token")
    handle.signal("stop", "")
    world.wait_for_event(handle, "ACTIVITY_TASK_CANCEL_REQUESTED")
    activity_handle = world.client.get_activity_handle(token=activities.state.token)
    assert activity_handle.heartbeat() is True
    activity_handle.cancel("tidied up")
    assert handle.result(timeout=60) == ["CancelledError", "tidied up"]


@workflow.defn
def receives_signal_during_activity() -> str:
    task = activities.opens_gate_and_waits_for_go.start("begun")
    workflow.Channel("word", str).receive()
    return task.result()


@scenario("loose")
def activity_started_event_has_time_of_actual_start(world: World) -> None:
    """The event is written only when the attempt has ended."""
    handle = world.start(receives_signal_during_activity)
    activities.wait_for_gate("begun")
    handle.signal("word", "")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    activities.gate("go").set()
    assert handle.result(timeout=60) == "begun"
    moments = [datetime.fromisoformat(event["eventTime"]) for event in handle.history().events]
    times = dict(zip(event_types(handle.history()), moments, strict=True))
    assert times["ACTIVITY_TASK_STARTED"] < times["WORKFLOW_EXECUTION_SIGNALED"]
    assert times["WORKFLOW_EXECUTION_SIGNALED"] < times["ACTIVITY_TASK_COMPLETED"]


@workflow.defn
def awaits_second_attempt() -> int:
    return activities.fails_until_attempt.options(retry_policy=RetryPolicy(initial_interval=60))(2)


@scenario()
def describe_shows_pending_activity_between_attempts(world: World) -> None:
    handle = world.start(awaits_second_attempt)
    world.wait_until(
        lambda: [activity.attempt for activity in handle.describe().pending_activities] == [2],
        "a second attempt",
    )
    (pending,) = handle.describe().pending_activities
    assert (pending.id, pending.activity_type, pending.state) == ("1", "fails_until_attempt", "SCHEDULED")
    assert isinstance(pending.last_failure, ApplicationError)
    assert pending.last_failure.type == "NotYet"
    assert pending.next_attempt_time is not None
    handle.terminate("seen")
    world.failure(handle)


@activity.defn(retry_policy=QUICK, start_to_close_timeout=0.5, heartbeat_timeout=10)
def heartbeats_and_hangs() -> None:
    activity.heartbeat("page", activity.info().attempt)
    activities.gate("hung").wait(20)


@workflow.defn
def awaits_hanging_activity(attempts: int) -> None:
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=attempts)
    heartbeats_and_hangs.options(retry_policy=policy)()


@scenario()
def start_to_close_timeout_has_heartbeat_details(world: World) -> None:
    for attempts in (1, 2):
        error = world.run_failing(awaits_hanging_activity, attempts)
        assert isinstance(error.cause, TimedOutError)
        assert error.cause.type == TimeoutType.START_TO_CLOSE
        assert list(error.cause.last_heartbeat_details) == ["page", attempts]
    activities.gate("hung").set()
