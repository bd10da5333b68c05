"""What a run takes along when it continues as new, and what it knows of itself: policies, limits, priorities, history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import WorkflowHandle
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ApplicationError, UsageError

from . import acts
from .scenario import scenario
from .world import World, kinds

LIMIT = 30
REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


@workflow.defn
def takes_along(past: list[str]) -> list[str]:
    """Each run checks what the one before gave it."""
    info = workflow.info()
    assert workflow.memo_value("runs", type=int) == len(past)
    assert workflow.search_attributes() == {"CustomKeywordField": f"run {len(past)}"}
    assert info.retry_policy is not None
    assert info.retry_policy.maximum_attempts == 100 + len(past)
    assert info.run_timeout == timedelta(seconds=1000 + len(past))
    assert info.task_timeout == timedelta(seconds=20 + len(past))
    if info.continued_run_id:
        past.append(info.continued_run_id)
    if len(past) == 3:
        return past
    count = len(past) if past else 0
    return workflow.continue_as_new(
        past,
        memo={"runs": count},
        search_attributes=[REGION.value_set(f"run {count}")],
        retry_policy=RetryPolicy(maximum_attempts=100 + count),
        run_timeout=1000 + count,
        task_timeout=20 + count,
    )


@scenario()
def continuing_with_everything_new(world: World) -> None:
    """Memo, search attributes, retry policy and limits are those that the run before gave; its id is known."""
    handle = world.start(
        takes_along,
        [],
        memo={"runs": 0},
        search_attributes=[REGION.value_set("run 0")],
        retry_policy=RetryPolicy(maximum_attempts=100),
        run_timeout=1000,
        task_timeout=20,
    )
    past = handle.result(timeout=LIMIT)
    assert len(past) == 3
    assert past[0] == handle.run_id


@workflow.defn
def keeps(turn: int) -> list[Any]:
    """Gives nothing to the next run but the turn."""
    info = workflow.info()
    if turn:
        return workflow.continue_as_new(turn - 1)
    policy = info.retry_policy
    return [
        workflow.memo(),
        workflow.search_attributes(),
        None if policy is None else policy.maximum_attempts,
        None if info.run_timeout is None else info.run_timeout.total_seconds(),
        None if info.task_timeout is None else info.task_timeout.total_seconds(),
    ]


@scenario()
def continuing_with_nothing_new(world: World) -> None:
    """What is not given stays: memo, search attributes and limits. A retry policy does as well."""
    result = world.run(
        keeps,
        2,
        memo={"a": 1},
        search_attributes=[REGION.value_set("eu")],
        retry_policy=RetryPolicy(maximum_attempts=7),
        run_timeout=500,
        task_timeout=15,
    )
    assert result[0] == {"a": 1}
    assert result[1] == {"CustomKeywordField": "eu"}
    assert result[3:] == [500.0, 15.0]


@workflow.defn
def hands_over(carried: list[str]) -> list[str]:
    """Continues in the very task in which another message arrives."""
    inbox = workflow.Channel("word", str)
    carried = [*carried, inbox.receive()]
    if len(carried) == 1:
        with workflow.unsafe():
            acts.gate("leaving").set()
            acts.gate("signalled").wait(1.5)
        return workflow.continue_as_new([*carried, *inbox.drain()])
    while len(carried) < 3:
        carried.append(inbox.receive())
    return carried


@scenario("loose")
def a_signal_that_meets_a_run_that_continues(world: World) -> None:
    """A signal that comes while a run's last task wants to continue as new is not lost: the task is done again."""
    handle = world.start(hands_over, [])
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal("word", "first")
    acts.arrived("leaving")
    handle.signal("word", "second")
    acts.gate("signalled").set()
    latest = world.client.get_workflow_handle(handle.id)
    world.until_true(lambda: latest.describe().run_id != handle.run_id, "a second run")
    latest.signal("word", "third")
    assert handle.result(timeout=LIMIT) == ["first", "second", "third"]
    first = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
    assert kinds(first.history()).count("WORKFLOW_TASK_FAILED") == 1


@workflow.defn
def continues_wrongly() -> str:
    """With arguments that its own signature does not take."""
    try:
        workflow.continue_as_new("too many", "arguments")
    except UsageError:
        return "refused"


@scenario()
def continuing_with_wrong_arguments(world: World) -> None:
    """Arguments are checked before the run ends: it can go on."""
    assert world.run(continues_wrongly) == "refused"


# --- priorities -------------------------------------------------------------------------------------------------------


@activity.defn
def my_priority() -> int:
    """What the attempt was given."""
    return activity.info().priority_key


@workflow.defn
def urgent(children: bool) -> list[int]:
    """Its own priority, and those that it gives."""
    found = [workflow.info().priority_key]
    if children:
        found += urgent.options(priority_key=4)(False)
        found += urgent.options(priority_key=2).start(False).result()
        found += [my_priority.options(priority_key=5)()]
    return found


@scenario("loose")
def priorities_are_handed_on(world: World) -> None:
    """A priority given at the start, to a child or to an activity is known there and stands in the history."""
    handle = world.start(urgent, True, priority_key=1)
    assert handle.result(timeout=LIMIT) == [1, 4, 2, 5]
    bodies = [body for event in handle.history().events for body in event.values() if isinstance(body, dict)]
    assert [body["priority"]["priorityKey"] for body in bodies if "priority" in body] == [1, 4, 2, 5]
    assert world.run(urgent, False) == [0]
    with pytest.raises(UsageError, match="priority_key"):
        world.client.start_workflow(urgent, False, priority_key=-1)


@activity.defn
def my_share() -> tuple[int, str, float]:
    """What the attempt was given."""
    info = activity.info()
    return info.priority_key, info.fairness_key, info.fairness_weight


@workflow.defn
def shared(children: bool) -> list[tuple[int, str, float]]:
    """Its own share, and those that it gives."""
    info = workflow.info()
    found = [(info.priority_key, info.fairness_key, info.fairness_weight)]
    if children:
        found += shared.options(fairness_key="b", fairness_weight=0.5)(False)
        found += shared(False)
        queued = my_share.options(
            disable_eager_execution=True
        )  # a server tells the worker that asks only what was asked
        found += [queued.options(fairness_weight=4)(), queued.options(priority_key=5)()]
    return found


@scenario("loose")
def shares_are_handed_on(world: World) -> None:
    """A fairness key and a weight are known where they are given; what is not said there is the caller's."""
    handle = world.start(shared, True, priority_key=2, fairness_key="acme", fairness_weight=2.5)
    assert handle.result(timeout=LIMIT) == [
        (2, "acme", 2.5),
        (2, "b", 0.5),
        (2, "acme", 2.5),
        (2, "acme", 4.0),
        (5, "acme", 2.5),
    ]
    first = handle.history().events[0]["workflowExecutionStartedEventAttributes"]["priority"]
    assert (first["fairnessKey"], first["fairnessWeight"]) == ("acme", 2.5)
    for wrong in ({"fairness_key": "k" * 65}, {"fairness_weight": -1}, {"fairness_weight": 1001}):
        with pytest.raises(UsageError, match="fairness_"):
            world.client.start_workflow(shared, False, **wrong)


# --- what a run knows -------------------------------------------------------------------------------------------------


@workflow.defn
class Bookkeeper:
    """Knows how long its history is."""

    def __init__(self) -> None:
        self.over = False

    @workflow.run
    def run(self) -> list[Any]:
        """Until it is over."""
        info = workflow.info()
        policy = info.retry_policy
        assert policy is not None
        told = [
            info.attempt,
            info.cron_schedule,
            info.execution_timeout,
            [
                policy.initial_interval,
                policy.backoff_coefficient,
                policy.maximum_interval,
                policy.maximum_attempts,
            ],
            info.parent_workflow_id,
            info.start_time.tzinfo is not None,
        ]
        workflow.wait_condition(lambda: self.over)
        return told

    @workflow.signal
    def timers(self, count: int) -> None:
        """Make the history longer."""
        for _ in range(count):
            workflow.spawn(workflow.sleep, 86_400)

    @workflow.signal
    def finish(self) -> None:
        """End."""
        self.over = True

    @workflow.query
    def history(self) -> list[Any]:
        """How it stands."""
        info = workflow.info()
        return [info.history_length, info.history_size, info.is_continue_as_new_suggested]


@scenario("loose")
def how_long_a_history_is(world: World) -> None:
    """A workflow knows the length and size of its history as of its last task, and is not urged to continue yet."""
    handle: WorkflowHandle[list[Any]] = world.start(
        Bookkeeper.run,
        retry_policy=RetryPolicy(
            initial_interval=3, backoff_coefficient=4, maximum_interval=5, maximum_attempts=6
        ),
    )
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    length, size, urged = handle.query(Bookkeeper.history)
    assert (length, urged) == (3, False)
    assert size > 100
    handle.signal(Bookkeeper.timers, 5)
    world.until(handle, "TIMER_STARTED", 5)
    handle.signal(Bookkeeper.finish)
    assert handle.result(timeout=LIMIT) == [1, None, None, [3.0, 4.0, 5.0, 6], None, True]
    longer, larger, _ = handle.query(Bookkeeper.history)
    assert longer >= 12
    assert larger > size


@workflow.defn
def inside() -> list[bool]:
    """Where it is."""
    return [workflow.in_workflow(), activity.in_activity(), where()]


@activity.defn
def where() -> bool:
    """Where an activity is."""
    return activity.in_activity() and not workflow.in_workflow()


@scenario()
def who_is_in_a_workflow(world: World) -> None:
    """Workflow code knows that it is, an activity's code knows that it is not, and neither does a test."""
    assert world.run(inside) == [True, False, True]
    assert not workflow.in_workflow()
    assert not activity.in_activity()


@workflow.defn
def clocks() -> None:
    """The three clocks, before and after a pause, told when it is asked."""
    times = [workflow.now().timestamp(), workflow.time(), workflow.time_ns()]
    workflow.sleep(0.05)
    times.append(workflow.time_ns())

    @workflow.query
    def told() -> list[float]:
        return times


@scenario()
def the_time_of_a_workflow(world: World) -> None:
    """A workflow's time is that of its tasks in the history, to the nanosecond."""
    handle = world.start(clocks)
    handle.result(timeout=LIMIT)
    now, seconds, first, last = handle.query("told")
    assert now == pytest.approx(seconds, abs=1e-6)
    assert seconds == first / 1e9
    started = [e["eventTime"] for e in handle.history().events if e["eventType"].endswith("TASK_STARTED")]
    assert [nanoseconds(each) for each in started] == [first, last]
    assert last > first


def nanoseconds(text: str) -> int:
    """A time of a history since the epoch."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)


@workflow.defn
def draws() -> None:
    """A number and an id, told when it is asked."""
    drawn = [str(workflow.uuid4()), str(workflow.random().random())]

    @workflow.query
    def told() -> list[str]:
        return drawn


@scenario("loose", max_cached_workflows=0)
def ids_are_drawn_once(world: World) -> None:
    """Random numbers and ids are a run's own, and the same on another worker."""
    handles = [world.start(draws), world.start(draws)]
    for handle in handles:
        handle.result(timeout=LIMIT)
    first, second = (handle.query("told") for handle in handles)
    assert not set(first) & set(second)
    world.start_worker()
    assert [handle.query("told") for handle in handles] == [first, second]


@workflow.defn
def fails_with_its_number() -> None:
    """Fails in each attempt."""
    raise ApplicationError(f"attempt {workflow.info().attempt}")


@scenario()
def a_retried_run_knows_its_attempt(world: World) -> None:
    """The failure of a run that was tried three times is the third one's."""
    policy = RetryPolicy(initial_interval=0.01, maximum_attempts=3)
    assert str(world.fails(fails_with_its_number, retry_policy=policy)) == "attempt 3"


@scenario()
def a_signal_with_a_delayed_start(world: World) -> None:
    """A signal that comes with a delayed start is there at once, and waits for the delay with it."""
    handle = world.start(waits_for_a_word, start_delay=3600, start_signal="word", start_signal_args=["early"])
    started = handle.history().events[0]["workflowExecutionStartedEventAttributes"]
    assert started["firstWorkflowTaskBackoff"] == "3600s"
    assert kinds(handle.history()) == ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_EXECUTION_SIGNALED"]
    handle.terminate("seen")


@scenario()
def a_signal_with_a_start_that_is_hardly_delayed(world: World) -> None:
    """After the delay the run finds the signal that came with its start."""
    handle = world.start(waits_for_a_word, start_delay=0.1, start_signal="word", start_signal_args=["early"])
    assert handle.result(timeout=LIMIT) == "early"


@workflow.defn
def waits_for_a_word() -> str:
    """One word."""
    return str(workflow.Channel("word", str).receive())
