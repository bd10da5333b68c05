"""Attempts of activities: delays, details that are carried on, what an attempt knows, ends that come from outside."""

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

from . import acts
from .scenario import scenario
from .world import World, described, kinds

QUICK = RetryPolicy(initial_interval=0.02, maximum_attempts=3)


@activity.defn(retry_policy=RetryPolicy(initial_interval=60, maximum_attempts=3))
def names_its_delay() -> int:
    attempt = activity.info().attempt
    if attempt < 3:
        raise ApplicationError("soon", next_retry_delay=timedelta(seconds=0.02))
    return attempt


@activity.defn(retry_policy=QUICK, start_to_close_timeout=0.3)
def slow_at_first() -> int:
    """The first attempt takes too long."""
    go = acts.gate("never")
    if activity.info().attempt == 1:
        go.wait(60)
    return activity.info().attempt


@activity.defn(retry_policy=QUICK, heartbeat_timeout=0.4)
def silent_at_first() -> list[Any]:
    """The first attempt beats once, with details, and falls silent; the second one finds them."""
    go = acts.gate("never")
    if activity.info().attempt == 1:
        activity.heartbeat("page", 7)
        go.wait(60)
    return list(activity.info().heartbeat_details)


@activity.defn(retry_policy=QUICK)
def refuses_by_turns() -> None:
    raise ApplicationError(f"attempt {activity.info().attempt}", type=f"Kind{activity.info().attempt}")


@activity.defn(start_to_close_timeout=33, schedule_to_close_timeout=44, heartbeat_timeout=22)
def who_am_i() -> dict[str, Any]:
    info = activity.info()
    assert info.scheduled_time is not None
    assert info.started_time is not None
    assert info.scheduled_time <= info.started_time
    return {
        "type": info.activity_type,
        "id": info.activity_id,
        "attempt": info.attempt,
        "workflow": info.workflow_type,
        "limits": str([info.start_to_close_timeout, info.schedule_to_close_timeout, info.heartbeat_timeout]),
        "local": info.is_local,
        "details": list(info.heartbeat_details),
    }


@workflow.defn
def calls(what: str) -> Any:
    match what:
        case "names_its_delay":
            return names_its_delay()
        case "slow_at_first":
            return slow_at_first()
        case "silent_at_first":
            return silent_at_first()
        case "who_am_i":
            return who_am_i()
        case "refused by the third kind":
            policy = RetryPolicy(initial_interval=0.02, non_retryable_error_types=["Kind2"])
            return refuses_by_turns.options(retry_policy=policy)()
        case "unknown":
            return workflow.execute_activity(
                "nobody-has-this", start_to_close_timeout=5, retry_policy=RetryPolicy(maximum_attempts=1)
            )
        case "two of one name":
            one = acts.double.options(activity_id="same").start(1)
            return [one.result(), acts.double.options(activity_id="same")(2)]
    return None


@scenario()
def a_failure_names_its_delay(world: World) -> None:
    """The delay that a failure names is taken instead of the policy's minute."""
    assert world.run(calls, "names_its_delay") == 3


@scenario()
def a_timed_out_attempt_is_tried_again(world: World) -> None:
    """start-to-close is per attempt: the second one may succeed; the history tells why the first did not."""
    handle = world.start(calls, "slow_at_first")
    assert handle.result(timeout=60) == 2
    (started,) = [
        event["activityTaskStartedEventAttributes"]
        for event in handle.history().events
        if "activityTaskStartedEventAttributes" in event
    ]
    assert started["lastFailure"]["timeoutFailureInfo"]["timeoutType"] == "TIMEOUT_TYPE_START_TO_CLOSE"


@scenario()
def details_outlive_a_timeout(world: World) -> None:
    """An attempt that fell silent leaves its details to the next one."""
    assert world.run(calls, "silent_at_first") == ["page", 7]


@scenario()
def a_later_attempt_is_final(world: World) -> None:
    """The first failure is tried again, the second is of a kind that the policy names."""
    error = world.fails(calls, "refused by the third kind")
    assert (error.retry_state, error.cause.type) == (RetryState.NON_RETRYABLE_FAILURE, "Kind2")


@scenario()
def what_an_attempt_knows(world: World) -> None:
    """Names, limits and number of an attempt."""
    told = world.run(calls, "who_am_i")
    assert (told["type"], told["id"], told["attempt"], told["workflow"]) == ("who_am_i", "1", 1, "calls")
    assert told["limits"] == str([timedelta(seconds=seconds) for seconds in (33, 44, 22)])


@scenario(loud=True)
def an_activity_that_nobody_has(world: World) -> None:
    """A worker that does not know an activity fails it, naming it."""
    error = world.fails(calls, "unknown")
    assert "nobody-has-this" in str(error.cause)


@scenario()
def an_id_is_free_again(world: World) -> None:
    """The id of an activity that ended may be used again in the same run."""
    assert world.run(calls, "two of one name") == [2, 4]


@activity.defn
def runs_out(fails_first: bool) -> None:
    """No attempt ends by itself; the first one may fail."""
    go = acts.gate("never")
    if fails_first and activity.info().attempt == 1:
        raise ApplicationError("once more", type="First")
    go.wait(60)


@workflow.defn
def out_of_time(how: str, fails_first: bool) -> None:
    limits: dict[str, Any] = {
        "attempt": {"start_to_close_timeout": 0.3},
        "silence": {"heartbeat_timeout": 0.3},
    }[how]
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=2)
    runs_out.options(retry_policy=policy, **limits)(fails_first)


def causes(world: World, how: str, fails_first: bool) -> list[str]:
    """The kinds of errors along the chain of causes of an activity that timed out in the end."""
    error = world.fails(out_of_time, how, fails_first)
    assert error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
    return [each["class"] for each in described(error)]


@scenario()
def a_timeout_after_a_failure(world: World) -> None:
    """An activity that times out in the end tells the failure before as the cause."""
    assert causes(world, "attempt", True) == ["ActivityError", "TimedOutError", "ApplicationError"]


@scenario()
def silence_after_a_failure(world: World) -> None:
    """So does one that falls silent."""
    assert causes(world, "silence", True) == ["ActivityError", "TimedOutError", "ApplicationError"]


@scenario()
def two_timeouts(world: World) -> None:
    """An attempt that timed out before is such a cause, too."""
    assert causes(world, "attempt", False) == ["ActivityError", "TimedOutError", "TimedOutError"]


@workflow.defn
def leaves_it(seconds: float | None) -> str:
    return acts.elsewhere.options(heartbeat_timeout=seconds, retry_policy=acts.ONCE)()


@scenario()
def completed_by_its_ids(world: World) -> None:
    """An activity that was left is completed by the workflow's id and its own, without the run's."""
    handle = world.start(leaves_it, None)
    acts.arrived("token")
    world.client.get_activity_handle(workflow_id=handle.id, activity_id="1").complete("by ids")
    assert handle.result(timeout=60) == "by ids"


@scenario()
def an_end_is_taken_once(world: World) -> None:
    """Whoever completes an activity that has ended is told so."""
    handle = world.start(leaves_it, None)
    acts.arrived("token")
    outside = world.client.get_activity_handle(token=acts.place.token)
    outside.complete("one")
    with pytest.raises(ServiceError):
        outside.complete("two")
    assert handle.result(timeout=60) == "one"


@scenario()
def beats_from_outside(world: World) -> None:
    """Heartbeats from outside keep an activity alive, and their details come with its timeout."""
    handle = world.start(leaves_it, 1)
    acts.arrived("token")
    assert world.client.get_activity_handle(token=acts.place.token).heartbeat("half") is False
    error = world.failure(handle)
    assert isinstance(error.cause, TimedOutError)
    assert error.cause.type == TimeoutType.HEARTBEAT
    assert list(error.cause.last_heartbeat_details) == ["half"]


@workflow.defn
def stops_what_was_left() -> list[str]:
    kind = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
    task = acts.elsewhere.options(cancellation_type=kind).start()
    workflow.Channel("stop", str).receive()
    task.cancel()
    error = task.exception()
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, CancelledError)
    return [type(error.cause).__name__, *error.cause.details]


@scenario()
def cancelled_from_outside(world: World) -> None:
    """A heartbeat from outside learns of the cancellation, and reports that it was carried out, with details."""
    handle = world.start(stops_what_was_left)
    acts.arrived("token")
    handle.signal("stop", "")
    world.until(handle, "ACTIVITY_TASK_CANCEL_REQUESTED")
    outside = world.client.get_activity_handle(token=acts.place.token)
    assert outside.heartbeat() is True
    outside.cancel("tidied up")
    assert handle.result(timeout=60) == ["CancelledError", "tidied up"]


@workflow.defn
def waits_beside_an_activity() -> str:
    task = acts.passes.start("begun")
    workflow.Channel("word", str).receive()
    return task.result()


@scenario("loose")
def an_attempt_begins_when_it_begins(world: World) -> None:
    """A started event tells when the attempt began, though it is written with its end."""
    handle = world.start(waits_beside_an_activity)
    acts.arrived("begun")
    handle.signal("word", "")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    acts.gate("go").set()
    assert handle.result(timeout=60) == "begun"
    moments = [datetime.fromisoformat(event["eventTime"]) for event in handle.history().events]
    times = dict(zip(kinds(handle.history()), moments, strict=True))
    assert times["ACTIVITY_TASK_STARTED"] < times["WORKFLOW_EXECUTION_SIGNALED"]
    assert times["WORKFLOW_EXECUTION_SIGNALED"] < times["ACTIVITY_TASK_COMPLETED"]


@workflow.defn
def waits_for_two_tries() -> int:
    return acts.fails_until.options(retry_policy=RetryPolicy(initial_interval=60))(2)


@scenario()
def what_is_pending_is_told(world: World) -> None:
    """Between two attempts a client sees the attempt, the last failure and when the next one is due."""
    handle = world.start(waits_for_two_tries)
    world.until_true(
        lambda: [each.attempt for each in handle.describe().pending_activities] == [2], "a second attempt"
    )
    (pending,) = handle.describe().pending_activities
    assert (pending.id, pending.activity_type, pending.state) == ("1", "fails_until", "SCHEDULED")
    assert isinstance(pending.last_failure, ApplicationError)
    assert pending.last_failure.type == "NotYet"
    assert pending.next_attempt_time is not None
    handle.terminate("seen")
    world.failure(handle)


@activity.defn(retry_policy=QUICK, start_to_close_timeout=0.5, heartbeat_timeout=10)
def beats_and_hangs() -> None:
    """Tells how far it is, and goes no further."""
    activity.heartbeat("page", activity.info().attempt)
    acts.gate("hung").wait(20)


@workflow.defn
def waits_for_one_that_hangs(attempts: int) -> None:
    """Lets the timeout out."""
    policy = RetryPolicy(initial_interval=0.02, maximum_attempts=attempts)
    beats_and_hangs.options(retry_policy=policy)()


@scenario()
def an_attempt_that_took_too_long_has_told_how_far_it_was(world: World) -> None:
    """What was told by heartbeats comes with every timeout, not only with that of the heartbeats."""
    for attempts in (1, 2):
        error = world.fails(waits_for_one_that_hangs, attempts)
        assert isinstance(error.cause, TimedOutError)
        assert error.cause.type == TimeoutType.START_TO_CLOSE
        assert list(error.cause.last_heartbeat_details) == ["page", attempts]
    acts.gate("hung").set()
