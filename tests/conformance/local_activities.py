"""Local activities: attempts within the workflow task, markers, long backoffs as timers, timeouts and cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, CancelledError, TaskCancelledError

from . import activities
from .scenario import returns, scenario
from .world import World, attributes_of, error_chain, event_types

Kind = workflow.ActivityCancellationType
MARKER = "MARKER_RECORDED"


@activity.defn
async def say_hello(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


@activity.defn(retry_policy=activities.ONCE)
def waits_for_gate(name: str) -> str:
    """Open the gate `<name> runs`, then wait for the gate `name` or for cancellation."""
    go, wait_cancelled = activities.gate(name), activity.wait_cancelled
    activities.gate(f"{name} runs").set()
    while not go.wait(0.01):
        if wait_cancelled(0):
            activities.state.calls.append(f"{name} was cancelled")
            raise CancelledError(f"{name} stops")
    return name


@activity.defn(retry_policy=activities.ONCE)
def ignores_cancellation(name: str) -> str:
    """Like `waits_for_gate`, without regard to cancellation."""
    go = activities.gate(name)
    activities.gate(f"{name} runs").set()
    go.wait(20)
    return name


def events_without_workflow_tasks(world: World, handle: Any) -> list[str]:
    return [kind for kind in event_types(handle.history()) if not kind.startswith("WORKFLOW_TASK_")]


# --- results and failures ---------------------------------------------------------------------------------------------


@workflow.defn
def calls_every_kind_of_local_activity(name: str) -> list[Any]:
    return [
        activities.double.local(4),
        say_hello.local(name),
        activities.SHOP.greet.local(name),
        workflow.execute_local_activity("double", 5, result_type=int, start_to_close_timeout=10),
    ]


@scenario()
def local_activities_run_in_first_task_and_leave_markers(world: World) -> None:
    handle = world.start(calls_every_kind_of_local_activity, "Ann")
    assert handle.result(timeout=60) == [8, "hello Ann", "Bob greets Ann", 10]
    assert event_types(handle.history()).count("WORKFLOW_TASK_COMPLETED") == 1
    assert event_types(handle.history()).count(MARKER) == 4


@workflow.defn
def fails_with_local_activity() -> None:
    activities.fails_without_retries.local("no way")


@scenario()
def non_retryable_local_activity_failure_fails_run(world: World) -> None:
    chain = error_chain(world.run_failing(fails_with_local_activity))
    assert [error["class"] for error in chain] == ["ActivityError", "ApplicationError"]
    assert chain[1]["details"] == [{"why": "broke"}]


@workflow.defn
def retries_local_activities(attempts: int) -> list[Any]:
    worked = activities.fails_until_attempt.local(attempts)
    try:
        activities.raises_value_error.local()
    except ActivityError as error:
        cause = error.__cause__
        assert isinstance(cause, ApplicationError)
        return [worked, cause.type, str(cause)]
    return []


@scenario()
def local_activity_with_short_retries_leaves_one_marker(world: World) -> None:
    handle = world.start(retries_local_activities, 3)
    assert handle.result(timeout=60) == [3, "LookupError", "nothing there"]
    assert activities.state.calls == ["raised"] * 4
    assert event_types(handle.history()).count(MARKER) == 2
    assert event_types(handle.history()).count("WORKFLOW_TASK_COMPLETED") == 1


SLOW = RetryPolicy(initial_interval=0.4, backoff_coefficient=1.0, maximum_attempts=3)


@workflow.defn
def retries_with_long_backoff(attempt: int) -> int:
    return activities.fails_until_attempt.options(retry_policy=SLOW, local_retry_threshold=0.1).local(attempt)


@scenario()
def local_activity_backoff_above_threshold_uses_timer(world: World) -> None:
    handle = world.start(retries_with_long_backoff, 3)
    assert handle.result(timeout=60) == 3
    types = events_without_workflow_tasks(world, handle)
    assert types[1:-1] == [MARKER, "TIMER_STARTED", "TIMER_FIRED"] * 2 + [MARKER]


@scenario()
def local_activity_backoff_timer_replays_without_cache(world: World) -> None:
    world.start_worker(max_cached_workflows=0)
    assert world.run(retries_with_long_backoff, 2) == 2


@workflow.defn
def times_out_during_backoff() -> str:
    patient = RetryPolicy(initial_interval=60, maximum_attempts=3)
    try:
        with workflow.timeout(0.5):
            activities.fails_until_attempt.options(retry_policy=patient, local_retry_threshold=0.1).local(3)
    except TimeoutError:
        return "left"
    return "stayed"


@scenario()
def cancellation_during_local_activity_backoff_cancels_timer(world: World) -> None:
    handle = world.start(times_out_during_backoff)
    assert handle.result(timeout=60) == "left"
    assert "TIMER_CANCELED" in events_without_workflow_tasks(world, handle)


# --- limits -----------------------------------------------------------------------------------------------------------


@workflow.defn
def exceeds_local_timeout(which: str) -> list[Any]:
    limits: dict[str, float] = {which: 0.2}
    try:
        ignores_cancellation.options(**limits).local("slow")  # type: ignore[arg-type]
    except ActivityError as error:
        # Core limits an attempt to the schedule-to-close timeout, so either timeout may end it.
        chain = error_chain(error)
        return chain if which == "start_to_close_timeout" else [{"class": item["class"]} for item in chain]
    return []


@scenario()
def start_to_close_timeout_ends_local_activity_attempt(world: World) -> None:
    chain = world.run(exceeds_local_timeout, "start_to_close_timeout")
    assert [error["class"] for error in chain] == ["ActivityError", "TimedOutError"]


@scenario("loose")
def schedule_to_close_timeout_ends_local_activity(world: World) -> None:
    chain = world.run(exceeds_local_timeout, "schedule_to_close_timeout")
    assert [error["class"] for error in chain] == ["ActivityError", "TimedOutError"]


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.05, maximum_attempts=3))
def exceeds_timeout_on_first_attempt() -> int:
    if activity.info().attempt == 1:
        activities.gate("never").wait(2)
    return activity.info().attempt


@returns(2)
@workflow.defn
def local_activity_retries_after_start_to_close_timeout() -> int:
    return exceeds_timeout_on_first_attempt.options(start_to_close_timeout=0.3).local()


@workflow.defn
def waits_for_local_activity_slot() -> list[Any]:
    first = workflow.spawn(lambda: waits_for_gate.local("first"))
    impatient = workflow.spawn(lambda: say_hello.options(schedule_to_start_timeout=0.1).local("Ann"))
    chain: list[Any] = []
    try:
        impatient.result()
    except ActivityError as error:
        chain = error_chain(error)
    return [first.result(), chain]


@scenario("loose", max_concurrent_local_activities=1)
def schedule_to_start_timeout_ends_queued_local_activity(world: World) -> None:
    handle = world.start(waits_for_local_activity_slot)
    activities.wait_for_gate("first runs")
    threading.Event().wait(0.3)
    activities.gate("first").set()
    name, chain = handle.result(timeout=60)
    assert name == "first"
    assert [error["class"] for error in chain] == ["ActivityError", "TimedOutError"]


# --- cancellation -----------------------------------------------------------------------------------------------------


@workflow.defn
def cancels_by_timeout_block(kind: int) -> list[Any]:
    chosen = waits_for_gate.options(cancellation_type=Kind(kind))
    try:
        with workflow.timeout(0.1):
            chosen.local("held")
    except TimeoutError:
        return ["left", workflow.info().workflow_type]
    return ["stayed"]


def run_with_cancelled_local_activity(world: World, kind: Kind) -> Any:
    handle = world.start(cancels_by_timeout_block, int(kind), task_timeout=1)
    activities.wait_for_gate("held runs")
    return handle


@scenario("loose")
def try_cancel_of_local_activity_continues_run_immediately(world: World) -> None:
    handle = run_with_cancelled_local_activity(world, Kind.TRY_CANCEL)
    assert handle.result(timeout=60)[0] == "left"
    world.wait_until(lambda: activities.state.calls == ["held was cancelled"], "a cancelled attempt")


@scenario("loose")
def wait_cancellation_completed_waits_for_local_activity(world: World) -> None:
    handle = run_with_cancelled_local_activity(world, Kind.WAIT_CANCELLATION_COMPLETED)
    assert handle.result(timeout=60)[0] == "left"
    assert activities.state.calls == ["held was cancelled"]


@scenario("loose")
def abandoned_local_activity_continues_run_immediately(world: World) -> None:
    handle = run_with_cancelled_local_activity(world, Kind.ABANDON)
    assert handle.result(timeout=60)[0] == "left"


@workflow.defn
def refunds_when_cancelled() -> str:
    try:
        waits_for_gate.local("held")
    finally:
        activities.record_call("refund")
    return "never"


@scenario("loose")
def cancellation_reaches_run_at_heartbeat_of_local_activity(world: World) -> None:
    handle = world.start(refunds_when_cancelled, task_timeout=1)
    activities.wait_for_gate("held runs")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)
    assert "refund" in activities.state.calls


@workflow.defn
def cancels_before_start() -> list[str]:
    seen: list[str] = []
    for kind in Kind:
        task = workflow.start_local_activity(waits_for_gate.options(cancellation_type=kind), "never")
        task.cancel()
        try:
            task.result()
        except (ActivityError, TaskCancelledError) as error:
            seen.append(f"{kind.name} {type(error).__name__} {type(error.__cause__).__name__}")
    return seen


@scenario()
def local_activity_cancelled_before_start_makes_no_attempt(world: World) -> None:
    handle = world.start(cancels_before_start)
    handle.result(timeout=60)
    assert not activities.gate("never runs").is_set()


# --- several, and beside other things ---------------------------------------------------------------------------------


@returns([2 * number for number in range(20)], 20, order="loose")
@workflow.defn
def twenty_concurrent_local_activities_complete(count: int) -> list[int]:
    tasks = [workflow.start_local_activity(activities.double, number) for number in range(count)]
    return workflow.gather(*tasks)  # type: ignore[return-value]


@workflow.defn
def mixes_local_and_remote_activities() -> list[Any]:
    first = activities.double.local(1)
    second = activities.double(first)
    task = workflow.start_activity(activities.increase, second)
    third = activities.double.local(second)
    workflow.sleep(0.05)
    return [first, second, third, task.result(), activities.double.local(third)]


@scenario("loose")
def local_and_remote_activities_share_sequence_numbers(world: World) -> None:
    handle = world.start(mixes_local_and_remote_activities)
    assert handle.result(timeout=60) == [2, 4, 8, 5, 16]
    scheduled = attributes_of(handle.history(), "ACTIVITY_TASK_SCHEDULED")
    assert [activity["activityId"] for activity in scheduled] == ["2", "3"]


@workflow.defn
class CollectsFromHandlers:
    def __init__(self) -> None:
        self.found: list[Any] = []

    @workflow.run
    def run(self, count: int) -> list[Any]:
        workflow.wait_condition(lambda: len(self.found) == count)
        return sorted(self.found, key=str)  # the order of a signal and an update is undefined

    @workflow.signal
    def add(self, number: int) -> None:
        self.found.append(activities.double.local(number))

    @workflow.update
    def greet(self, name: str) -> str:
        greeting = say_hello.local(name)
        self.found.append(greeting)
        return greeting

    @workflow.query
    def count(self) -> int:
        return len(self.found)


@scenario("loose")
def signal_and_update_handlers_run_local_activities(world: World) -> None:
    handle = world.start(CollectsFromHandlers.run, 3)
    handle.signal(CollectsFromHandlers.add, 4)
    assert handle.execute_update(CollectsFromHandlers.greet, "Ann") == "hello Ann"
    handle.signal(CollectsFromHandlers.add, 5)
    assert handle.result(timeout=60) == [10, 8, "hello Ann"]


@workflow.defn
def returns_during_local_activity() -> str:
    workflow.start_local_activity(waits_for_gate, "left")
    activities.double(1)
    return "done"


@workflow.defn
def returns_in_task_that_starts_local_activity() -> str:
    workflow.start_local_activity(waits_for_gate, "left")
    return "done"


@scenario("loose")
def local_activity_is_cancelled_without_marker_when_run_ends(world: World) -> None:
    handle = world.start(returns_during_local_activity, task_timeout=1)
    assert handle.result(timeout=60) == "done"
    assert MARKER not in event_types(handle.history())
    handle = world.start(returns_in_task_that_starts_local_activity)
    assert handle.result(timeout=60) == "done"
    assert MARKER not in event_types(handle.history())


@workflow.defn
class AnswersDuringLocalActivity:
    def __init__(self) -> None:
        self.said: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        self.said.append(waits_for_gate.local("long"))
        return self.said

    @workflow.signal
    def say(self, what: str) -> None:
        self.said.append(what)

    @workflow.query
    def told(self) -> list[str]:
        return self.said


@scenario("loose")
def signals_and_queries_are_processed_during_local_activity(world: World) -> None:
    handle = world.start(AnswersDuringLocalActivity.run, task_timeout=1)
    activities.wait_for_gate("long runs")
    handle.signal(AnswersDuringLocalActivity.say, "hello")
    world.wait_until(lambda: handle.query(AnswersDuringLocalActivity.told) == ["hello"], "an answer")
    activities.gate("long").set()
    assert handle.result(timeout=60) == ["hello", "long"]
    assert event_types(handle.history()).count("WORKFLOW_TASK_COMPLETED") > 1


@scenario("loose")
def local_activities_replay_from_markers_without_cache(world: World) -> None:
    world.start_worker(max_cached_workflows=0)
    assert world.run(mixes_local_and_remote_activities) == [2, 4, 8, 5, 16]


@workflow.defn
def calls_with_summary() -> int:
    return activities.double.options(summary="twice").local(2)


@scenario()
def local_activity_marker_has_summary(world: World) -> None:
    handle = world.start(calls_with_summary)
    assert handle.result(timeout=60) == 4
    marker = next(event for event in handle.history().events if event["eventType"].endswith(MARKER))
    assert marker["userMetadata"]["summary"]["data"]
