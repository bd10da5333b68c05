"""Features that users of temporalio may expect: random sources, handlers as values, delayed next runs, activity classes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from random import Random
from typing import Any

import pytest
from temporalio.api.sdk.v1 import EnhancedStackTrace

from hourglass import ApplicationError, RetryPolicy, activity, workflow
from hourglass.client import IdReusePolicy
from hourglass.errors import QueryFailedError, UsageError, WorkflowAlreadyStartedError
from hourglass.workflow import ActivityCancellationType, RawPayload

from .activities import Reversing, Scaling
from .scenario import scenario
from .world import World, exists, successor_run_id

# --- randomness -------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """An exception that fails the run."""


@workflow.defn(failure_exceptions=[OddError])
class DrawsRandomValues:
    @workflow.run
    def run(self) -> dict[str, Any]:
        same, named, named_b = workflow.new_random(), workflow.new_random("a"), workflow.new_random("b")
        seed = workflow.random_seed()
        first, milliseconds = workflow.uuid7(), workflow.time_ns() // 1_000_000
        workflow.sleep(0.01)
        second = workflow.uuid7()
        workflow.new_random("late")
        return {
            "same": same.random() == Random(seed).random(),
            "apart": len({named.random(), named_b.random(), Random(seed).random()}) == 3,
            "version": [first.version, second.version, first.variant == second.variant],
            "time": first.int >> 80 == milliseconds,
            "sorted": first < second,
            "instance": workflow.instance() is self,
            "reason": workflow.cancellation_reason(),
            "fails": [
                workflow.is_failure_exception(e) for e in (OddError(), ApplicationError("x"), ValueError())
            ],
            "payload": workflow.payload_converter().encode([1]).data.decode(),
        }


@scenario()
def random_sources_and_uuids_are_deterministic(world: World) -> None:
    assert world.run(DrawsRandomValues.run) == {
        "same": True,
        "apart": True,
        "version": [7, 7, True],
        "time": True,
        "sorted": True,
        "instance": True,
        "reason": None,
        "fails": [True, True, False],
        "payload": "[1]",
    }


@workflow.defn
def reports_new_seed() -> list[Any]:
    seeds: list[int] = []
    source = workflow.new_random("x")
    workflow.register_random_seed_callback(seeds.append)
    before = workflow.random_seed()
    workflow.sleep(0.01)  # the reset point
    go = workflow.Channel("go", str)
    go.receive()
    seed = workflow.random_seed()
    return [
        seeds == ([] if seed == before else [seed]),
        seed != before,
        source.random() == Random(f"{seed}:x").random(),
    ]


@scenario("loose")
def reset_reseeds_random_sources_and_calls_callbacks(world: World) -> None:
    handle = world.start(reports_new_seed)
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    again = handle.reset()
    again.signal("go", "on")
    assert again.result() == [True, True, True]


# --- handlers as values -----------------------------------------------------------------------------------------------


@workflow.defn
class ChangesHandlers:
    def __init__(self) -> None:
        self.got: list[str] = []

    @workflow.run
    def run(self) -> list[Any]:
        workflow.set_signal_handler("put", self.put)
        workflow.set_update_handler("change", self.change, validator=self.refuse)
        answer = workflow.get_query_handler("count")
        assert answer is not None
        workflow.set_query_handler("again", answer)
        workflow.set_dynamic_query_handler(lambda name, args: f"no {name}")
        workflow.set_query_handler("gone", self.count)
        workflow.set_query_handler("gone", None)
        workflow.set_dynamic_query_handler(None)
        registered = [workflow.get_signal_handler("put") is not None, workflow.get_signal_handler("other")]
        workflow.wait_condition(lambda: "end" in self.got)
        return [*registered, workflow.get_dynamic_query_handler(), *self.got]

    def put(self, item: str) -> None:
        self.got.append(item)

    def change(self, item: str) -> int:
        self.got.append(item)
        return len(self.got)

    def refuse(self, item: str) -> None:
        if not item:
            raise ApplicationError("nothing")

    @workflow.query
    def count(self) -> int:
        return len(self.got)


@scenario("loose")
def handlers_can_be_set_replaced_and_removed_at_run_time(world: World) -> None:
    handle = world.start(ChangesHandlers.run)
    handle.signal("put", "a")
    assert handle.execute_update("change", "b") in (1, 2)
    assert handle.query("again") == handle.query("count")
    with pytest.raises(QueryFailedError):
        handle.query("gone")
    handle.signal("put", "end")
    result = handle.result()
    assert result[:3] == [True, None, None]
    assert sorted(result[3:]) == ["a", "b", "end"]


# --- the next run -----------------------------------------------------------------------------------------------------


@workflow.defn
def continues_with_backoff(runs_left: int) -> list[Any]:
    if not runs_left:
        return [workflow.info().start_time > workflow.info().workflow_start_time]
    try:
        workflow.continue_as_new(runs_left - 1, backoff_start_interval=1)
    except workflow.ContinueAsNewError:
        raise
    except Exception:  # ContinueAsNewError is not an Exception
        return ["held"]


@scenario("loose")
def continue_as_new_backoff_delays_next_run(world: World) -> None:
    handle = world.start(continues_with_backoff, 1)
    assert handle.result() == [True]
    first, second = world.histories()
    continued = first.events[-1]["workflowExecutionContinuedAsNewEventAttributes"]
    started = second.events[0]["workflowExecutionStartedEventAttributes"]
    assert continued["backoffStartInterval"] == started["firstWorkflowTaskBackoff"] == "1s"
    assert successor_run_id(first)


# --- activities -------------------------------------------------------------------------------------------------------

STARTED = threading.Semaphore(0)
EXECUTOR = ThreadPoolExecutor(2, thread_name_prefix="the-authors")


@activity.defn
def thread_name() -> str:
    return threading.current_thread().name.partition("_")[0]


@activity.defn(
    start_to_close_timeout=60, cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
)
def reports_cancellation_details() -> list[Any]:
    before = activity.cancellation_details()
    while not activity.wait_cancelled(1):
        activity.heartbeat()
    return [before, asdict(activity.cancellation_details() or activity.CancellationDetails())]


@workflow.defn
def cancels_activity() -> list[Any]:
    task = reports_cancellation_details.start()
    workflow.sleep(0.1)
    task.cancel()
    return [thread_name(), task.result()]


@scenario(
    "loose",
    activity_executor=EXECUTOR,
    max_heartbeat_throttle_interval=0.05,
    default_heartbeat_throttle_interval=0.05,
)
def cancelled_activity_has_cancellation_details_and_runs_in_given_executor(world: World) -> None:
    thread, (before, details) = world.run(cancels_activity)
    assert thread == "the-authors"
    assert before is None
    assert [name for name, is_so in details.items() if is_so] == ["cancel_requested"]


@activity.defn(start_to_close_timeout=60, retry_policy=RetryPolicy(maximum_attempts=1))
def waits_for_worker_shutdown() -> list[bool]:
    before = activity.is_worker_shutdown()
    STARTED.release()
    notified = activity.wait_for_worker_shutdown_sync(30)
    return [before, notified, activity.is_worker_shutdown(), activity.cancelled()]


@activity.defn(start_to_close_timeout=60, retry_policy=RetryPolicy(maximum_attempts=1))
async def awaits_worker_shutdown() -> list[bool]:
    STARTED.release()
    await activity.wait_for_worker_shutdown()
    return [activity.is_worker_shutdown(), activity.cancelled()]


@workflow.defn
def runs_activities_during_shutdown() -> list[Any]:
    tasks = [waits_for_worker_shutdown.start(), awaits_worker_shutdown.start()]
    return workflow.gather(*tasks)


@scenario("loose", graceful_shutdown_timeout=60)
def activities_are_notified_of_worker_shutdown_within_grace_period(world: World) -> None:
    handle = world.start(runs_activities_during_shutdown)
    assert STARTED.acquire(timeout=60)
    assert STARTED.acquire(timeout=60)
    world.stop_worker()
    world.start_worker()
    assert handle.result() == [[False, True, True, False], [True, False]]


@activity.defn(
    start_to_close_timeout=60,
    heartbeat_timeout=None,
    retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2),
)
def fails_externally_once() -> Any:
    if activity.info().attempt == 1:
        activity.complete_async()
    return activity.heartbeat_details(int)


@workflow.defn
def calls_externally_failed_activity() -> Any:
    return fails_externally_once.options(activity_id="it")()


@scenario("loose")
def external_failure_passes_heartbeat_details_to_next_attempt(world: World) -> None:
    handle = world.start(calls_externally_failed_activity)
    world.wait_until(
        lambda: [pending for pending in handle.describe().pending_activities if pending.state == "STARTED"],
        "the attempt",
    )
    attempt = world.client.get_activity_handle(workflow_id=handle.id, activity_id="it")
    attempt.fail(ApplicationError("not so"), last_heartbeat_details=[7])
    assert handle.result() == 7


# --- values -----------------------------------------------------------------------------------------------------------


@activity.defn
def echo_raw(value: RawPayload) -> RawPayload:
    return value


@workflow.defn
class InitializedWithArguments:
    @workflow.init
    def __init__(self, first: list[int], second: RawPayload) -> None:
        self.first = first
        self.second = second

    @workflow.run
    def run(self, items: list[int], raw: RawPayload) -> list[Any]:
        return [self.first is items, self.second is raw, raw.decode(str), echo_raw(raw).decode()]


@scenario()
def workflow_init_receives_arguments_of_run_and_raw_payloads(world: World) -> None:
    assert world.run(InitializedWithArguments.run, [1], "text") == [True, True, "text", "text"]


# --- where it stands --------------------------------------------------------------------------------------------------


@workflow.defn
def waits_in_inner_function() -> str:
    go = workflow.Channel("go", str)

    def inner_function() -> str:
        return go.receive()

    return inner_function()


@scenario("loose")
def enhanced_stack_trace_query_returns_frames_and_sources(world: World) -> None:
    handle = world.start_waiting(waits_in_inner_function)
    trace = handle.query("__enhanced_stack_trace", result_type=EnhancedStackTrace)
    (stack,) = trace.stacks
    authored = [place for place in stack.locations if not place.internal_code]
    assert [place.function_name for place in authored][:2] == ["inner_function", "waits_in_inner_function"]
    lines = trace.sources[authored[0].file_path].content.splitlines()
    assert lines[authored[0].line - 1].strip() == "return go.receive()"
    handle.signal("go", "on")
    assert handle.result() == "on"


# --- activities that are classes --------------------------------------------------------------------------------------


@workflow.defn
def calls_activity_classes() -> list[Any]:
    begun = workflow.start_activity(Scaling, 4)
    return [
        workflow.execute_activity(Scaling, 2),
        workflow.execute_local_activity(Scaling, 3),
        begun.result(),
        workflow.execute_activity(Reversing, "abc", start_to_close_timeout=60),
        Reversing.__call__("xyz"),
    ]


@scenario("loose")
def classes_with_call_method_are_activities(world: World) -> None:
    assert world.run(calls_activity_classes) == [6, 9, 12, "cba", "zyx"]
    assert world.client.execute_activity(Scaling, 5, task_queue=world.queue, id=f"{world.queue}-5") == 15


# --- signals that start -----------------------------------------------------------------------------------------------


@workflow.defn
class CollectsTwoItems:
    def __init__(self) -> None:
        self.items: list[str] = []

    @workflow.run
    def run(self, owner: str) -> list[str]:
        workflow.wait_condition(lambda: len(self.items) > 1)
        return [owner, *self.items]

    @workflow.signal
    def put(self, item: str) -> None:
        self.items.append(item)


@workflow.defn
def signals_with_start(id: str) -> list[Any]:
    first = workflow.with_start(CollectsTwoItems.run, "ann", id=id, memo={"of": "ann"}).signal(
        CollectsTwoItems.put, "lamp"
    )
    second = workflow.with_start("CollectsTwoItems", "bob", id=id).signal("put", "desk")
    workflow.Channel("go", str).receive()
    never = workflow.with_start(
        CollectsTwoItems.run, "cid", id=id, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE
    )
    try:
        never.signal(CollectsTwoItems.put, "chair")
    except WorkflowAlreadyStartedError:
        return [first.id, first.run_id == second.run_id]
    return []


@scenario("loose")
def workflow_can_signal_with_start(world: World) -> None:
    basket = f"{world.queue}-basket"
    handle = world.start(signals_with_start, basket)
    basket_handle = world.client.get_workflow_handle(basket, workflow=CollectsTwoItems.run)
    world.wait_until(lambda: exists(basket_handle), "a basket")
    assert basket_handle.result(timeout=60) == ["ann", "lamp", "desk"]
    assert basket_handle.describe().memo == {"of": "ann"}
    handle.signal("go", "on")
    assert handle.result(timeout=60) == [basket, True]


# --- how urgent an open run is ------------------------------------------------------------------------------------------


@workflow.defn
def waits_for_go_signal() -> str:
    return workflow.Channel("go", str).receive()


@scenario("loose")
def update_options_changes_single_priority_fields_of_open_run(world: World) -> None:
    handle = world.start_waiting(waits_for_go_signal, priority_key=4)
    handle.update_options(priority_key=2)
    handle.update_options(fairness_key="ann", rpc_timeout=60)
    handle.signal("go", "on")
    assert handle.result(timeout=60) == "on"
    attributes = [
        event.get("workflowExecutionOptionsUpdatedEventAttributes") for event in handle.history().events
    ]
    assert [event["priority"] for event in attributes if event] == [
        {"priorityKey": 2},
        {"priorityKey": 2, "fairnessKey": "ann"},
    ]
    with pytest.raises(UsageError, match="at least one"):
        handle.update_options()
    with pytest.raises(UsageError, match="not task_queue"):
        handle.update_options(task_queue="q")  # type: ignore[call-arg]
