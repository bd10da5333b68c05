"""What temporalio's users may look for beyond the usual: ids and randomness of several kinds, handlers as values, the next run
after a pause.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from random import Random
from typing import Any

import pytest
from temporalio.api.sdk.v1 import EnhancedStackTrace

from hourglass import ApplicationError, RetryPolicy, activity, workflow
from hourglass.client import IdReusePolicy, WorkflowHandle
from hourglass.errors import QueryFailedError, UsageError, WorkflowAlreadyStartedError, WorkflowNotFoundError
from hourglass.workflow import ActivityCancellationType, RawPayload

from .acts import Scaling, Turning
from .scenario import scenario
from .world import World, successor

# --- randomness -------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """A failure of this family's own."""


@workflow.defn(failure_exceptions=[OddError])
class Drawing:
    """Draws from every source, and tells what follows from what."""

    @workflow.run
    def run(self) -> dict[str, Any]:
        """Draw, wait, draw again."""
        same, named, other = workflow.new_random(), workflow.new_random("a"), workflow.new_random("b")
        seed = workflow.random_seed()
        first, milliseconds = workflow.uuid7(), workflow.time_ns() // 1_000_000
        workflow.sleep(0.01)
        second = workflow.uuid7()
        workflow.new_random("late")
        return {
            "same": same.random() == Random(seed).random(),
            "apart": len({named.random(), other.random(), Random(seed).random()}) == 3,
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
def randomness_of_every_kind(world: World) -> None:
    """Sources follow from the seed, UUIDs of version 7 from the time of the task, and facts of the run are values."""
    assert world.run(Drawing.run) == {
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
def seeded() -> list[Any]:
    """Tells whether what follows the seed was told of a new one, by a reset."""
    seeds: list[int] = []
    source = workflow.new_random("x")
    workflow.register_random_seed_callback(seeds.append)
    before = workflow.random_seed()
    workflow.sleep(0.01)  # a reset goes back to here
    go = workflow.Channel("go", str)
    go.receive()
    seed = workflow.random_seed()
    return [
        seeds == ([] if seed == before else [seed]),
        seed != before,
        source.random() == Random(f"{seed}:x").random(),
    ]


@scenario("loose")
def sources_follow_a_new_seed(world: World) -> None:
    """After a reset the run draws other numbers, from every source that it has, and its callbacks are told."""
    handle = world.start(seeded)
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    again = handle.reset()
    again.signal("go", "on")
    assert again.result() == [True, True, True]


# --- handlers as values -----------------------------------------------------------------------------------------------


@workflow.defn
class Changing:
    """Its handlers are set, replaced and taken away while it runs."""

    def __init__(self) -> None:
        self.got: list[str] = []

    @workflow.run
    def run(self) -> list[Any]:
        """Until it is told to end."""
        workflow.set_signal_handler("put", self.put)
        workflow.set_update_handler("change", self.change, validator=self.refuse)
        answer = workflow.get_query_handler("count")
        assert answer is not None
        workflow.set_query_handler("again", answer)
        workflow.set_dynamic_query_handler(lambda name, args: f"no {name}")
        workflow.set_query_handler("gone", self.count)
        workflow.set_query_handler("gone", None)
        workflow.set_dynamic_query_handler(None)
        known = [workflow.get_signal_handler("put") is not None, workflow.get_signal_handler("other")]
        workflow.wait_condition(lambda: "end" in self.got)
        return [*known, workflow.get_dynamic_query_handler(), *self.got]

    def put(self, item: str) -> None:
        """Keep it."""
        self.got.append(item)

    def change(self, item: str) -> int:
        """Keep it, too."""
        self.got.append(item)
        return len(self.got)

    def refuse(self, item: str) -> None:
        """What is empty is refused."""
        if not item:
            raise ApplicationError("nothing")

    @workflow.query
    def count(self) -> int:
        """How many there are."""
        return len(self.got)


@scenario("loose")
def handlers_that_are_set_and_taken_away(world: World) -> None:
    """A method becomes a handler while the run goes on, one handler has two names, and one that was taken away is gone."""
    handle = world.start(Changing.run)
    handle.signal("put", "a")
    assert handle.execute_update("change", "b") in (1, 2)
    assert handle.query("again") == handle.query("count")
    with pytest.raises(QueryFailedError):
        handle.query("gone")
    handle.signal("put", "end")
    told = handle.result()
    assert told[:3] == [True, None, None]
    assert sorted(told[3:]) == ["a", "b", "end"]


# --- the next run -----------------------------------------------------------------------------------------------------


@workflow.defn
def pausing(rest: int) -> list[Any]:
    """Continues as new, and lets the next run wait."""
    if not rest:
        return [workflow.info().start_time > workflow.info().workflow_start_time]
    try:
        workflow.continue_as_new(rest - 1, backoff_start_interval=1)
    except workflow.ContinueAsNewError:
        raise
    except Exception:  # it is none
        return ["held"]


@scenario("loose")
def the_next_run_waits_before_it_begins(world: World) -> None:
    """`continue_as_new(backoff_start_interval=…)` begins the next run after a pause; both histories tell of it."""
    handle = world.start(pausing, 1)
    assert handle.result() == [True]
    first, second = world.histories()
    told = first.events[-1]["workflowExecutionContinuedAsNewEventAttributes"]
    begun = second.events[0]["workflowExecutionStartedEventAttributes"]
    assert told["backoffStartInterval"] == begun["firstWorkflowTaskBackoff"] == "1s"
    assert successor(first)


# --- activities -------------------------------------------------------------------------------------------------------

BEGUN = threading.Semaphore(0)
OWN = ThreadPoolExecutor(2, thread_name_prefix="the-authors")


@activity.defn
def where() -> str:
    """In which thread it runs."""
    return threading.current_thread().name.partition("_")[0]


@activity.defn(
    start_to_close_timeout=60, cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
)
def until_told() -> list[Any]:
    """Waits until it is cancelled, and tells why."""
    before = activity.cancellation_details()
    while not activity.wait_cancelled(1):
        activity.heartbeat()
    return [before, asdict(activity.cancellation_details() or activity.CancellationDetails())]


@workflow.defn
def told_why() -> list[Any]:
    """An activity in the author's own thread, and one that is cancelled."""
    task = until_told.start()
    workflow.sleep(0.1)
    task.cancel()
    return [where(), task.result()]


@scenario(
    "loose",
    activity_executor=OWN,
    max_heartbeat_throttle_interval=0.05,
    default_heartbeat_throttle_interval=0.05,
)
def an_activity_knows_why_it_stops(world: World) -> None:
    """`cancellation_details` tells it, and a worker runs activities in the executor that it was given."""
    thread, (before, details) = world.run(told_why)
    assert thread == "the-authors"
    assert before is None
    assert [name for name, is_so in details.items() if is_so] == ["cancel_requested"]


@activity.defn(start_to_close_timeout=60, retry_policy=RetryPolicy(maximum_attempts=1))
def until_the_worker_ends() -> list[bool]:
    """Ends with its worker, and before it is asked to."""
    before = activity.is_worker_shutdown()
    BEGUN.release()
    heard = activity.wait_for_worker_shutdown_sync(30)
    return [before, heard, activity.is_worker_shutdown(), activity.cancelled()]


@activity.defn(start_to_close_timeout=60, retry_policy=RetryPolicy(maximum_attempts=1))
async def awaiting_the_worker() -> list[bool]:
    """The same, awaited."""
    BEGUN.release()
    await activity.wait_for_worker_shutdown()
    return [activity.is_worker_shutdown(), activity.cancelled()]


@workflow.defn
def outlives_a_worker() -> list[Any]:
    """Two activities that wait for the end of their worker."""
    tasks = [until_the_worker_ends.start(), awaiting_the_worker.start()]
    return workflow.gather(*tasks)


@scenario("loose", graceful_shutdown_timeout=60)
def an_activity_hears_that_its_worker_ends(world: World) -> None:
    """When a worker begins to shut down its activities are told, and have the graceful time to end well."""
    handle = world.start(outlives_a_worker)
    assert BEGUN.acquire(timeout=60)
    assert BEGUN.acquire(timeout=60)
    world.stop_worker()
    world.start_worker()
    assert handle.result() == [[False, True, True, False], [True, False]]


@activity.defn(
    start_to_close_timeout=60,
    heartbeat_timeout=None,
    retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=2),
)
def failed_from_outside() -> Any:
    """Its first attempt is failed by a client; the second tells what it found."""
    if activity.info().attempt == 1:
        activity.complete_async()
    return activity.heartbeat_details(int)


@workflow.defn
def picks_up() -> Any:
    """An activity that goes on where a client says."""
    return failed_from_outside.options(activity_id="it")()


@scenario("loose")
def a_failure_from_outside_with_a_cursor(world: World) -> None:
    """A client fails an attempt, and says where the next one goes on."""
    handle = world.start(picks_up)
    world.until_true(
        lambda: [each for each in handle.describe().pending_activities if each.state == "STARTED"],
        "the attempt",
    )
    attempt = world.client.get_activity_handle(workflow_id=handle.id, activity_id="it")
    attempt.fail(ApplicationError("not so"), last_heartbeat_details=[7])
    assert handle.result() == 7


# --- values -----------------------------------------------------------------------------------------------------------


@activity.defn
def passes_on(value: RawPayload) -> RawPayload:
    """Gives back what it was given, whatever it is."""
    return value


@workflow.defn
class Given:
    """Its constructor is given what its run method is given."""

    @workflow.init
    def __init__(self, first: list[int], second: RawPayload) -> None:
        self.first = first
        self.second = second

    @workflow.run
    def run(self, items: list[int], raw: RawPayload) -> list[Any]:
        """Tells whether they are the same, and passes the raw one on."""
        return [self.first is items, self.second is raw, raw.decode(str), passes_on(raw).decode()]


@scenario()
def arguments_by_other_names_and_not_decoded(world: World) -> None:
    """`@workflow.init` gives `__init__` the very arguments of the run method, and a `RawPayload` may stand among others."""
    assert world.run(Given.run, [1], "text") == [True, True, "text", "text"]


# --- where it stands --------------------------------------------------------------------------------------------------


@workflow.defn
def waiting_here() -> str:
    """Waits in a function of its own."""
    go = workflow.Channel("go", str)

    def in_here() -> str:
        return go.receive()

    return in_here()


@scenario("loose")
def the_stack_as_data(world: World) -> None:
    """The query of Temporal's UI for stacks with sources: the author's frames, their lines and their file's text."""
    handle = world.start(waiting_here)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    told = handle.query("__enhanced_stack_trace", result_type=EnhancedStackTrace)
    (stack,) = told.stacks
    authored = [place for place in stack.locations if not place.internal_code]
    assert [place.function_name for place in authored][:2] == ["in_here", "waiting_here"]
    lines = told.sources[authored[0].file_path].content.splitlines()
    assert lines[authored[0].line - 1].strip() == "return go.receive()"
    handle.signal("go", "on")
    assert handle.result() == "on"


# --- activities that are classes --------------------------------------------------------------------------------------


@workflow.defn
def calls_classes() -> list[Any]:
    """Calls activities by their classes, in every way."""
    begun = workflow.start_activity(Scaling, 4)
    return [
        workflow.execute_activity(Scaling, 2),
        workflow.execute_local_activity(Scaling, 3),
        begun.result(),
        workflow.execute_activity(Turning, "abc", start_to_close_timeout=60),
        Turning.__call__("xyz"),
    ]


@scenario("loose")
def activities_that_are_classes(world: World) -> None:
    """A class with `__call__` is an activity, of its own name or the class's; its worker has the object."""
    assert world.run(calls_classes) == [6, 9, 12, "cba", "zyx"]
    assert world.client.execute_activity(Scaling, 5, task_queue=world.queue, id=f"{world.queue}-5") == 15


# --- signals that start -----------------------------------------------------------------------------------------------


@workflow.defn
class Basket:
    """Is begun by its first signal, and ends with its second."""

    def __init__(self) -> None:
        self.items: list[str] = []

    @workflow.run
    def run(self, owner: str) -> list[str]:
        """Until two things are in it."""
        workflow.wait_condition(lambda: len(self.items) > 1)
        return [owner, *self.items]

    @workflow.signal
    def put(self, item: str) -> None:
        """One more."""
        self.items.append(item)


@workflow.defn
def fills(id: str) -> list[Any]:
    """Puts two things into a basket that need not be there; then one into another that must not have been there."""
    first = workflow.with_start(Basket.run, "ann", id=id, memo={"of": "ann"}).signal(Basket.put, "lamp")
    second = workflow.with_start("Basket", "bob", id=id).signal("put", "desk")
    workflow.Channel("go", str).receive()
    never = workflow.with_start(Basket.run, "cid", id=id, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    try:
        never.signal(Basket.put, "chair")
    except WorkflowAlreadyStartedError:
        return [first.id, first.run_id == second.run_id]
    return []


@scenario("loose")
def a_signal_with_a_start(world: World) -> None:
    """From within a workflow another one is signalled, and begun first where it does not run: once, in one step."""
    basket = f"{world.queue}-basket"
    handle = world.start(fills, basket)
    found = world.client.get_workflow_handle(basket, workflow=Basket.run)
    world.until_true(lambda: _is_there(found), "a basket")
    assert found.result(timeout=60) == ["ann", "lamp", "desk"]
    assert found.describe().memo == {"of": "ann"}
    handle.signal("go", "on")
    assert handle.result(timeout=60) == [basket, True]


def _is_there(handle: WorkflowHandle[Any]) -> bool:
    try:
        handle.describe()
    except WorkflowNotFoundError:
        return False
    return True


# --- how urgent an open run is ------------------------------------------------------------------------------------------


@workflow.defn
def waits_for_go() -> str:
    """Until it is told to go."""
    return workflow.Channel("go", str).receive()


@scenario("loose")
def the_priority_of_an_open_run(world: World) -> None:
    """It is changed from outside, one part and then another: what is not named stays."""
    handle = world.start(waits_for_go, priority_key=4)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.update_options(priority_key=2)
    handle.update_options(fairness_key="ann", rpc_timeout=60)
    handle.signal("go", "on")
    assert handle.result(timeout=60) == "on"
    told = [each.get("workflowExecutionOptionsUpdatedEventAttributes") for each in handle.history().events]
    assert [each["priority"] for each in told if each] == [
        {"priorityKey": 2},
        {"priorityKey": 2, "fairnessKey": "ann"},
    ]
    with pytest.raises(UsageError, match="at least one"):
        handle.update_options()
    with pytest.raises(UsageError, match="not task_queue"):
        handle.update_options(task_queue="q")  # type: ignore[call-arg]
