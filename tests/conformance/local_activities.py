"""Local activities: attempts within the workflow task, markers, long pauses as timers, limits and cancellation."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError, CancelledError, TaskCancelledError

from . import acts
from .scenario import scenario
from .world import World, described, kinds

Kind = workflow.ActivityCancellationType
MARKER = "MARKER_RECORDED"


@activity.defn
async def greets(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


@activity.defn(retry_policy=acts.ONCE)
def waits_for(name: str) -> str:
    """Open the gate `<name> runs`, then wait for the gate of its own name, or until it is cancelled."""
    go, told = acts.gate(name), activity.wait_cancelled
    acts.gate(f"{name} runs").set()
    while not go.wait(0.01):
        if told(0):
            acts.place.calls.append(f"{name} was cancelled")
            raise CancelledError(f"{name} stops")
    return name


@activity.defn(retry_policy=acts.ONCE)
def goes_on(name: str) -> str:
    """As `waits_for`, deaf to cancellation."""
    go = acts.gate(name)
    acts.gate(f"{name} runs").set()
    go.wait(20)
    return name


def event_list(world: World, handle: Any) -> list[str]:
    return [kind for kind in kinds(handle.history()) if not kind.startswith("WORKFLOW_TASK_")]


# --- results and failures ---------------------------------------------------------------------------------------------


@workflow.defn
def one_of_each_style(name: str) -> list[Any]:
    """A `def`, an `async def`, a method, by name."""
    return [
        acts.double.local(4),
        greets.local(name),
        acts.SHOP.greet.local(name),
        workflow.execute_local_activity("double", 5, result_type=int, start_to_close_timeout=10),
    ]


@scenario()
def local_results(world: World) -> None:
    """Four local activities run within the first workflow task and leave four markers."""
    handle = world.start(one_of_each_style, "Ann")
    assert handle.result(timeout=60) == [8, "hello Ann", "Bob greets Ann", 10]
    assert kinds(handle.history()).count("WORKFLOW_TASK_COMPLETED") == 1
    assert kinds(handle.history()).count(MARKER) == 4


@workflow.defn
def lets_it_out() -> None:
    """Fails as its local activity does."""
    acts.fails_for_good.local("no way")


@scenario()
def a_local_failure(world: World) -> None:
    """A failure that must not be retried ends the run, with its type and details."""
    chain = described(world.fails(lets_it_out))
    assert [each["class"] for each in chain] == ["ActivityError", "ApplicationError"]
    assert chain[1]["details"] == [{"why": "broke"}]


@workflow.defn
def tries_locally(attempts: int) -> list[Any]:
    """A local activity that fails for a while, and one that never stops."""
    worked = acts.fails_until.local(attempts)
    try:
        acts.raises_value_error.local()
    except ActivityError as error:
        cause = error.__cause__
        assert isinstance(cause, ApplicationError)
        return [worked, cause.type, str(cause)]
    return []


@scenario()
def local_retries(world: World) -> None:
    """Short pauses pass within the task: each local activity leaves one marker, whatever it took."""
    handle = world.start(tries_locally, 3)
    assert handle.result(timeout=60) == [3, "LookupError", "nothing there"]
    assert acts.place.calls == ["raised"] * 4
    assert kinds(handle.history()).count(MARKER) == 2
    assert kinds(handle.history()).count("WORKFLOW_TASK_COMPLETED") == 1


SLOW = RetryPolicy(initial_interval=0.4, backoff_coefficient=1.0, maximum_attempts=3)


@workflow.defn
def pauses_for_long(attempt: int) -> int:
    """Its pauses are longer than what may pass within a task."""
    return acts.fails_until.options(retry_policy=SLOW, local_retry_threshold=0.1).local(attempt)


@scenario()
def a_long_local_pause(world: World) -> None:
    """A pause beyond the threshold is a timer; the next attempt has a number, and a marker, of its own."""
    handle = world.start(pauses_for_long, 3)
    assert handle.result(timeout=60) == 3
    found = event_list(world, handle)
    assert found[1:-1] == [MARKER, "TIMER_STARTED", "TIMER_FIRED"] * 2 + [MARKER]


@scenario()
def a_long_local_pause_without_a_cache(world: World) -> None:
    """The same where each task is replayed from the beginning."""
    world.start_worker(max_cached_workflows=0)
    assert world.run(pauses_for_long, 2) == 2


@workflow.defn
def cancelled_in_a_pause() -> str:
    """Leaves the block while its local activity pauses."""
    patient = RetryPolicy(initial_interval=60, maximum_attempts=3)
    try:
        with workflow.timeout(0.5):
            acts.fails_until.options(retry_policy=patient, local_retry_threshold=0.1).local(3)
    except TimeoutError:
        return "left"
    return "stayed"


@scenario()
def a_local_pause_that_is_cancelled(world: World) -> None:
    """Cancelling during the pause cancels its timer; there is no other attempt."""
    handle = world.start(cancelled_in_a_pause)
    assert handle.result(timeout=60) == "left"
    assert "TIMER_CANCELED" in event_list(world, handle)


# --- limits -----------------------------------------------------------------------------------------------------------


@workflow.defn
def is_too_slow(which: str) -> list[Any]:
    """Says which limit passed."""
    limits: dict[str, float] = {which: 0.2}
    try:
        goes_on.options(**limits).local("slow")  # type: ignore[arg-type]
    except ActivityError as error:
        # Core lets an attempt take no longer than the whole: which of the two passes first is a matter of chance there.
        chain = described(error)
        return chain if which == "start_to_close_timeout" else [{"class": each["class"]} for each in chain]
    return []


@scenario()
def a_local_start_to_close_timeout(world: World) -> None:
    """An attempt that takes too long is given up."""
    chain = world.run(is_too_slow, "start_to_close_timeout")
    assert [each["class"] for each in chain] == ["ActivityError", "TimedOutError"]


@scenario("loose")
def a_local_schedule_to_close_timeout(world: World) -> None:
    """So is a local activity as a whole."""
    chain = world.run(is_too_slow, "schedule_to_close_timeout")
    assert [each["class"] for each in chain] == ["ActivityError", "TimedOutError"]


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.05, maximum_attempts=3))
def is_slow_once() -> int:
    """Take too long at the first attempt."""
    if activity.info().attempt == 1:
        acts.gate("never").wait(2)
    return activity.info().attempt


@workflow.defn
def is_slow_and_tries_again() -> int:
    """Its first attempt times out."""
    return is_slow_once.options(start_to_close_timeout=0.3).local()


@scenario()
def a_local_timeout_is_retried(world: World) -> None:
    """An attempt that took too long is followed by another."""
    assert world.run(is_slow_and_tries_again) == 2


@workflow.defn
def waits_in_line() -> list[Any]:
    """The only place is taken for longer than it may wait."""
    first = workflow.spawn(lambda: waits_for.local("first"))
    impatient = workflow.spawn(lambda: greets.options(schedule_to_start_timeout=0.1).local("Ann"))
    chain: list[Any] = []
    try:
        impatient.result()
    except ActivityError as error:
        chain = described(error)
    return [first.result(), chain]


@scenario("loose", max_concurrent_local_activities=1)
def a_local_schedule_to_start_timeout(world: World) -> None:
    """One that waits too long for a place on the worker times out."""
    handle = world.start(waits_in_line)
    acts.arrived("first runs")
    threading.Event().wait(0.3)
    acts.gate("first").set()
    name, chain = handle.result(timeout=60)
    assert name == "first"
    assert [each["class"] for each in chain] == ["ActivityError", "TimedOutError"]


# --- cancellation -----------------------------------------------------------------------------------------------------


@workflow.defn
def leaves_the_block(kind: int) -> list[Any]:
    """A block that ends after a while cancels the local activity in it."""
    chosen = waits_for.options(cancellation_type=Kind(kind))
    try:
        with workflow.timeout(0.1):
            chosen.local("held")
    except TimeoutError:
        return ["left", workflow.info().workflow_type]
    return ["stayed"]


def left(world: World, kind: Kind) -> Any:
    handle = world.start(leaves_the_block, int(kind), task_timeout=1)
    acts.arrived("held runs")
    return handle


@scenario("loose")
def try_to_cancel_a_local_activity(world: World) -> None:
    """The run goes on at once; the attempt is told to stop."""
    handle = left(world, Kind.TRY_CANCEL)
    assert handle.result(timeout=60)[0] == "left"
    world.until_true(lambda: acts.place.calls == ["held was cancelled"], "a cancelled attempt")


@scenario("loose")
def wait_until_a_local_activity_has_stopped(world: World) -> None:
    """The run goes on when the attempt has stopped."""
    handle = left(world, Kind.WAIT_CANCELLATION_COMPLETED)
    assert handle.result(timeout=60)[0] == "left"
    assert acts.place.calls == ["held was cancelled"]


@scenario("loose")
def abandon_a_local_activity(world: World) -> None:
    """The run goes on at once."""
    handle = left(world, Kind.ABANDON)
    assert handle.result(timeout=60)[0] == "left"


@workflow.defn
def is_cancelled_locally() -> str:
    """Waits in a local activity; whatever happens, refunds."""
    try:
        waits_for.local("held")
    finally:
        acts.note("refund")
    return "never"


@scenario("loose")
def cancel_a_run_in_a_local_activity(world: World) -> None:
    """A cancellation reaches the run at its next task: the heartbeat's."""
    handle = world.start(is_cancelled_locally, task_timeout=1)
    acts.arrived("held runs")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)
    assert "refund" in acts.place.calls


@workflow.defn
def cancels_at_once() -> list[str]:
    """Cancels local activities that have not begun."""
    seen: list[str] = []
    for kind in Kind:
        task = workflow.start_local_activity(waits_for.options(cancellation_type=kind), "never")
        task.cancel()
        try:
            task.result()
        except (ActivityError, TaskCancelledError) as error:
            seen.append(f"{kind.name} {type(error).__name__} {type(error.__cause__).__name__}")
    return seen


@scenario()
def local_activities_that_never_begin(world: World) -> None:
    """Each leaves a marker all the same, and no attempt is made."""
    handle = world.start(cancels_at_once)
    handle.result(timeout=60)
    assert not acts.gate("never runs").is_set()


# --- several, and beside other things ---------------------------------------------------------------------------------


@workflow.defn
def many_at_once(count: int) -> list[int]:
    """All at the same time."""
    tasks = [workflow.start_local_activity(acts.double, number) for number in range(count)]
    return workflow.gather(*tasks)  # type: ignore[return-value]


@scenario("loose")
def local_activities_side_by_side(world: World) -> None:
    """Twenty local activities of one run."""
    assert world.run(many_at_once, 20) == [2 * number for number in range(20)]


@workflow.defn
def takes_turns() -> list[Any]:
    """Local and remote activities share their numbers."""
    first = acts.double.local(1)
    second = acts.double(first)
    task = workflow.start_activity(acts.increase, second)
    third = acts.double.local(second)
    workflow.sleep(0.05)
    return [first, second, third, task.result(), acts.double.local(third)]


@scenario("loose")
def local_and_remote_activities(world: World) -> None:
    """In turns, and at the same time."""
    handle = world.start(takes_turns)
    assert handle.result(timeout=60) == [2, 4, 8, 5, 16]
    found = handle.history().events
    ids = [
        each["activityTaskScheduledEventAttributes"]["activityId"]
        for each in found
        if "activityTaskScheduledEventAttributes" in each
    ]
    assert ids == ["2", "3"]


@workflow.defn
class Collector:
    """Its signal and its update run local activities."""

    def __init__(self) -> None:
        self.found: list[Any] = []

    @workflow.run
    def run(self, count: int) -> list[Any]:
        workflow.wait_condition(lambda: len(self.found) == count)
        return sorted(self.found, key=str)  # a signal and an update may overtake each other

    @workflow.signal
    def add(self, number: int) -> None:
        self.found.append(acts.double.local(number))

    @workflow.update
    def greet(self, name: str) -> str:
        said = greets.local(name)
        self.found.append(said)
        return said

    @workflow.query
    def count(self) -> int:
        return len(self.found)


@scenario("loose")
def local_activities_in_handlers(world: World) -> None:
    """A signal's and an update's handler run local activities."""
    handle = world.start(Collector.run, 3)
    handle.signal(Collector.add, 4)
    assert handle.execute_update(Collector.greet, "Ann") == "hello Ann"
    handle.signal(Collector.add, 5)
    assert handle.result(timeout=60) == [10, 8, "hello Ann"]


@workflow.defn
def does_not_wait() -> str:
    """Returns while its local activity runs."""
    workflow.start_local_activity(waits_for, "left")
    acts.double(1)
    return "done"


@workflow.defn
def returns_at_once() -> str:
    """Returns in the task in which it began its local activity."""
    workflow.start_local_activity(waits_for, "left")
    return "done"


@scenario("loose")
def a_run_that_ends_before_its_local_activity(world: World) -> None:
    """The local activity is cancelled, and leaves no marker behind the end."""
    handle = world.start(does_not_wait, task_timeout=1)
    assert handle.result(timeout=60) == "done"
    assert MARKER not in kinds(handle.history())
    handle = world.start(returns_at_once)
    assert handle.result(timeout=60) == "done"
    assert MARKER not in kinds(handle.history())


@workflow.defn
class Busy:
    """Waits in a local activity for long, and answers meanwhile."""

    def __init__(self) -> None:
        self.said: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        self.said.append(waits_for.local("long"))
        return self.said

    @workflow.signal
    def say(self, what: str) -> None:
        self.said.append(what)

    @workflow.query
    def told(self) -> list[str]:
        return self.said


@scenario("loose")
def signals_and_queries_during_a_local_activity(world: World) -> None:
    """The task beats while a local activity runs: signals arrive, queries are answered."""
    handle = world.start(Busy.run, task_timeout=1)
    acts.arrived("long runs")
    handle.signal(Busy.say, "hello")
    world.until_true(lambda: handle.query(Busy.told) == ["hello"], "an answer")
    acts.gate("long").set()
    assert handle.result(timeout=60) == ["hello", "long"]
    assert kinds(handle.history()).count("WORKFLOW_TASK_COMPLETED") > 1


@scenario("loose")
def local_activities_without_a_cache(world: World) -> None:
    """Nothing is cached: everything is replayed from markers."""
    world.start_worker(max_cached_workflows=0)
    assert world.run(takes_turns) == [2, 4, 8, 5, 16]


@workflow.defn
def with_a_summary() -> int:
    """As the web UI shows it."""
    return acts.double.options(summary="twice").local(2)


@scenario()
def a_local_summary(world: World) -> None:
    """The marker carries the summary."""
    handle = world.start(with_a_summary)
    assert handle.result(timeout=60) == 4
    marker = next(each for each in handle.history().events if each["eventType"].endswith(MARKER))
    assert marker["userMetadata"]["summary"]["data"]
