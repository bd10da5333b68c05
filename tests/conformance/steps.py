"""Activities one after another and side by side: results, retries, timeouts, every kind of activity."""

from __future__ import annotations

from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, RetryState, TimedOutError, TimeoutType

from . import acts
from .acts import ONCE
from .scenario import scenario
from .world import World, kinds


@workflow.defn
def in_sequence(number: int) -> int:
    for _ in range(3):
        number = acts.double(number)
    return number


@scenario()
def sequence(world: World) -> None:
    """Three activities, each on the result of the one before."""
    assert world.run(in_sequence, 1) == 8


@workflow.defn
def side_by_side(numbers: list[int]) -> list[int]:
    return workflow.gather(*[acts.double.start(number) for number in numbers])


@scenario("loose")
def parallel_gather(world: World) -> None:
    """Five activities at once; results in the order of the starts."""
    assert world.run(side_by_side, [5, 4, 3, 2, 1]) == [10, 8, 6, 4, 2]


@workflow.defn
def mapped(numbers: list[int]) -> list[int]:
    return workflow.map(acts.counted, numbers, limit=2)


@scenario("loose")
def map_with_limit(world: World) -> None:
    """Six activities, two at a time and never three."""
    assert world.run(mapped, [0, 1, 2, 3, 4, 5]) == [0, 1, 4, 9, 16, 25]
    assert acts.place.most == 2


@workflow.defn
def patient(attempt: int) -> int:
    return acts.fails_until(attempt)


@scenario()
def retries_with_backoff(world: World) -> None:
    """The third attempt succeeds; the history tells the attempt and the failure before it."""
    handle = world.start(patient, 3)
    assert handle.result(timeout=60) == 3
    (started,) = [
        event["activityTaskStartedEventAttributes"]
        for event in handle.history().events
        if "activityTaskStartedEventAttributes" in event
    ]
    assert started["attempt"] == 3
    assert started["lastFailure"]["message"] == "attempt 2 fails"
    assert started["lastFailure"]["applicationFailureInfo"]["type"] == "NotYet"


@scenario()
def attempts_used_up(world: World) -> None:
    """After the last attempt the run fails, with the activity's failure as the cause."""
    error = world.fails(patient, 99)
    assert isinstance(error, ActivityError)
    assert error.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
    assert error.activity_type == "fails_until"
    assert isinstance(error.cause, ApplicationError)
    assert (error.cause.message, error.cause.type, list(error.cause.details)) == (
        "attempt 4 fails",
        "NotYet",
        [4],
    )


@workflow.defn
def hopeless() -> None:
    acts.fails_for_good("no money")


@scenario()
def non_retryable(world: World) -> None:
    """A failure that says so is not tried again."""
    error = world.fails(hopeless)
    assert error.retry_state == RetryState.NON_RETRYABLE_FAILURE
    assert list(error.cause.details) == [{"why": "broke"}]


@workflow.defn
def refuses_kind() -> None:
    policy = RetryPolicy(initial_interval=0.01, non_retryable_error_types=["LookupError"])
    acts.raises_value_error.options(retry_policy=policy)()


@scenario()
def non_retryable_by_type(world: World) -> None:
    """A retry policy names kinds of errors; the exception's own cause travels too."""
    error = world.fails(refuses_kind)
    assert error.retry_state == RetryState.NON_RETRYABLE_FAILURE
    assert (error.cause.type, str(error.cause)) == ("LookupError", "nothing there")
    assert error.cause.cause.type == "ValueError"
    assert acts.place.calls == ["raised"]


@activity.defn(retry_policy=acts.QUICK)
def hangs_later() -> None:
    """The second attempt never ends by itself. (The first one's own limit would end with the limit for all attempts.)"""
    go = acts.gate("go")
    if activity.info().attempt == 1:
        raise ApplicationError("once more")
    go.wait(60)


@workflow.defn
def too_slow(which: str) -> None:
    match which:
        case "start_to_close":
            acts.passes.options(start_to_close_timeout=0.2)("slow")
        case "schedule_to_close":
            policy = RetryPolicy(initial_interval=5)
            acts.fails_until.options(schedule_to_close_timeout=0.4, retry_policy=policy)(99)
        case "running_out":
            hangs_later.options(schedule_to_close_timeout=0.4, start_to_close_timeout=None)()
        case "never_started":
            acts.double.options(schedule_to_close_timeout=0.2, task_queue="nobody-serves-this")(1)
        case "schedule_to_start":
            acts.double.options(schedule_to_start_timeout=0.2, task_queue="nobody-serves-this")(1)
        case "heartbeat":
            acts.falls_silent()


@scenario()
def start_to_close_timeout(world: World) -> None:
    """An attempt that takes too long times out."""
    error = world.fails(too_slow, "start_to_close")
    assert isinstance(error, ActivityError)
    assert isinstance(error.cause, TimedOutError)
    assert error.cause.type == TimeoutType.START_TO_CLOSE


@scenario()
def schedule_to_close_before_next_attempt(world: World) -> None:
    """No time is left for the next attempt: the last failure stays the cause."""
    error = world.fails(too_slow, "schedule_to_close")
    assert error.retry_state == RetryState.TIMEOUT


@scenario()
def schedule_to_close_timeout(world: World) -> None:
    """The time for all attempts passes while the second one is running."""
    error = world.fails(too_slow, "running_out")
    assert error.cause.type == TimeoutType.SCHEDULE_TO_CLOSE


@scenario()
def schedule_to_close_never_started(world: World) -> None:
    """The time for all attempts passes before anybody takes the first."""
    error = world.fails(too_slow, "never_started")
    assert isinstance(error.cause, TimedOutError)


@scenario()
def schedule_to_start_timeout(world: World) -> None:
    """Nobody takes the activity in time."""
    error = world.fails(too_slow, "schedule_to_start")
    assert error.cause.type == TimeoutType.SCHEDULE_TO_START


@scenario()
def heartbeat_timeout(world: World) -> None:
    """An activity that promised to beat and does not times out; its last details come with the error."""
    error = world.fails(too_slow, "heartbeat")
    assert error.cause.type == TimeoutType.HEARTBEAT
    assert list(error.cause.last_heartbeat_details) == ["half-way"]


@workflow.defn
def resuming() -> list[Any]:
    return acts.resumes()


@scenario()
def heartbeat_details(world: World) -> None:
    """The second attempt goes on from the details of the first."""
    assert world.run(resuming) == [2, 42]


@workflow.defn
def every_kind() -> list[Any]:
    return [
        acts.increase(1),
        acts.Shop.greet("Ann"),
        workflow.execute_activity("double", 4, result_type=int, start_to_close_timeout=10),
        workflow.start_activity(acts.double, 5).result(),
        acts.double.options(activity_id="mine", summary="doubling")(6),
    ]


@scenario()
def kinds_of_activities(world: World) -> None:
    """A coroutine, a method on the worker's object, one by its name, one with an id of its own."""
    handle = world.start(every_kind)
    assert handle.result(timeout=60) == [2, "Bob greets Ann", 8, 10, 12]
    ids = [
        event["activityTaskScheduledEventAttributes"]["activityId"]
        for event in handle.history().events
        if "activityTaskScheduledEventAttributes" in event
    ]
    assert ids == ["1", "2", "3", "4", "mine"]


@workflow.defn
def locally() -> list[Any]:
    good = acts.double.local(4)
    try:
        acts.fails_for_good.local("no")
    except ActivityError as error:
        return [good, getattr(error.cause, "type", ""), acts.double(1)]
    return []


@scenario()
def local_activities(world: World) -> None:
    """Within the workflow task: recorded as markers, no activity task."""
    handle = world.start(locally)
    assert handle.result(timeout=60) == [8, "Broke", 2]
    assert kinds(handle.history()).count("MARKER_RECORDED") == 2


@workflow.defn
def deferred() -> str:
    return acts.elsewhere()


@scenario()
def completed_from_outside(world: World) -> None:
    """An activity leaves and is completed by its token."""
    handle = world.start(deferred)
    acts.arrived("token")
    world.client.get_activity_handle(token=acts.place.token).complete("from outside")
    assert handle.result(timeout=60) == "from outside"


@scenario()
def failed_from_outside(world: World) -> None:
    """An activity is failed by its ids, for good."""
    handle = world.start(deferred)
    acts.arrived("token")
    outside = world.client.get_activity_handle(workflow_id=handle.id, run_id=handle.run_id, activity_id="1")
    outside.fail(ApplicationError("declined", type="Bank", non_retryable=True))
    assert world.failure(handle).cause.type == "Bank"


@workflow.defn
def falls_back() -> str:
    try:
        acts.fails_for_good("first")
    except ActivityError:
        return acts.note("second")
    return "first"


@scenario()
def caught_and_gone_on(world: World) -> None:
    """A failure that the workflow catches is no failure of the run."""
    assert world.run(falls_back) == "second"


@workflow.defn
def sleeps(seconds: float) -> bool:
    before = workflow.time()
    workflow.sleep(seconds)
    workflow.sleep(0)
    return workflow.time() - before >= seconds


@scenario()
def sleep(world: World) -> None:
    """A timer; sleeping for nothing makes none. The workflow's clock moves on."""
    assert world.run(sleeps, 0.05)


@workflow.defn
def once_only() -> int:
    return acts.fails_until.options(retry_policy=ONCE)(2)


@scenario()
def options_for_one_call(world: World) -> None:
    """A call's own retry policy replaces the activity's."""
    assert world.fails(once_only).retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
