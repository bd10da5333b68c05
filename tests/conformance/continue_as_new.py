"""What a run inherits by continue-as-new, and what `workflow.info()` says: policies, limits, priorities, history length."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import WorkflowHandle
from hourglass.converter import SearchAttributeKey
from hourglass.errors import UsageError

from . import activities
from .scenario import returns, scenario
from .world import LIMIT, World, event_types

REGION = SearchAttributeKey.for_keyword("CustomKeywordField")


@workflow.defn
def continues_with_new_options(past: list[str]) -> list[str]:
    """Each run checks the options that the previous run set."""
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
def continue_as_new_options_replace_those_of_previous_run(world: World) -> None:
    handle = world.start(
        continues_with_new_options,
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
def continues_without_options(turn: int) -> list[Any]:
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
def continue_as_new_inherits_memo_attributes_and_timeouts(world: World) -> None:
    result = world.run(
        continues_without_options,
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
def continues_while_signalled(carried: list[str]) -> list[str]:
    """Continues as new in a workflow task during which another signal arrives."""
    inbox = workflow.Channel("word", str)
    carried = [*carried, inbox.receive()]
    if len(carried) == 1:
        with workflow.unsafe():
            activities.gate("leaving").set()
            activities.gate("signalled").wait(1.5)
        return workflow.continue_as_new([*carried, *inbox.drain()])
    while len(carried) < 3:
        carried.append(inbox.receive())
    return carried


@scenario("loose")
def signal_during_continue_as_new_task_fails_task_and_is_delivered(world: World) -> None:
    handle = world.start_waiting(continues_while_signalled, [])
    handle.signal("word", "first")
    activities.wait_for_gate("leaving")
    handle.signal("word", "second")
    activities.gate("signalled").set()
    latest = world.client.get_workflow_handle(handle.id)
    world.wait_until(lambda: latest.describe().run_id != handle.run_id, "a second run")
    latest.signal("word", "third")
    assert handle.result(timeout=LIMIT) == ["first", "second", "third"]
    first = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
    assert event_types(first.history()).count("WORKFLOW_TASK_FAILED") == 1


@returns("refused")
@workflow.defn
def continue_as_new_checks_arguments_before_run_ends() -> str:
    try:
        workflow.continue_as_new("too many", "arguments")
    except UsageError:
        return "refused"


# --- priorities -------------------------------------------------------------------------------------------------------


@activity.defn
def priority_of_attempt() -> int:
    return activity.info().priority_key


@workflow.defn
def passes_priorities(children: bool) -> list[int]:
    priorities = [workflow.info().priority_key]
    if children:
        priorities += passes_priorities.options(priority_key=4)(False)
        priorities += passes_priorities.options(priority_key=2).start(False).result()
        priorities += [priority_of_attempt.options(priority_key=5)()]
    return priorities


@scenario("loose")
def priority_key_of_start_child_and_activity_reaches_callee(world: World) -> None:
    handle = world.start(passes_priorities, True, priority_key=1)
    assert handle.result(timeout=LIMIT) == [1, 4, 2, 5]
    bodies = [body for event in handle.history().events for body in event.values() if isinstance(body, dict)]
    assert [body["priority"]["priorityKey"] for body in bodies if "priority" in body] == [1, 4, 2, 5]
    assert world.run(passes_priorities, False) == [0]
    with pytest.raises(UsageError, match="priority_key"):
        world.client.start_workflow(passes_priorities, False, priority_key=-1)


@activity.defn
def fairness_of_attempt() -> tuple[int, str, float]:
    info = activity.info()
    return info.priority_key, info.fairness_key, info.fairness_weight


@workflow.defn
def passes_fairness(children: bool) -> list[tuple[int, str, float]]:
    info = workflow.info()
    fairness = [(info.priority_key, info.fairness_key, info.fairness_weight)]
    if children:
        fairness += passes_fairness.options(fairness_key="b", fairness_weight=0.5)(False)
        fairness += passes_fairness(False)
        # an eager start reports only the requested values on a server
        queued = fairness_of_attempt.options(disable_eager_execution=True)
        fairness += [queued.options(fairness_weight=4)(), queued.options(priority_key=5)()]
    return fairness


@scenario("loose")
def fairness_key_and_weight_are_inherited_unless_set(world: World) -> None:
    handle = world.start(passes_fairness, True, priority_key=2, fairness_key="acme", fairness_weight=2.5)
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
            world.client.start_workflow(passes_fairness, False, **wrong)


# --- what a run knows -------------------------------------------------------------------------------------------------


@workflow.defn
class ReportsHistoryLength:
    def __init__(self) -> None:
        self.over = False

    @workflow.run
    def run(self) -> list[Any]:
        info = workflow.info()
        policy = info.retry_policy
        assert policy is not None
        options = [
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
        return options

    @workflow.signal
    def start_timers(self, count: int) -> None:
        for _ in range(count):
            workflow.spawn(workflow.sleep, 86_400)

    @workflow.signal
    def finish(self) -> None:
        self.over = True

    @workflow.query
    def history(self) -> list[Any]:
        info = workflow.info()
        return [info.history_length, info.history_size, info.is_continue_as_new_suggested]


@scenario("loose")
def workflow_info_has_history_length_and_size(world: World) -> None:
    handle: WorkflowHandle[list[Any]] = world.start(
        ReportsHistoryLength.run,
        retry_policy=RetryPolicy(
            initial_interval=3, backoff_coefficient=4, maximum_interval=5, maximum_attempts=6
        ),
    )
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
    length, size, suggested = handle.query(ReportsHistoryLength.history)
    assert (length, suggested) == (3, False)
    assert size > 100
    handle.signal(ReportsHistoryLength.start_timers, 5)
    world.wait_for_event(handle, "TIMER_STARTED", 5)
    handle.signal(ReportsHistoryLength.finish)
    assert handle.result(timeout=LIMIT) == [1, None, None, [3.0, 4.0, 5.0, 6], None, True]
    longer, larger, _ = handle.query(ReportsHistoryLength.history)
    assert longer >= 12
    assert larger > size


@workflow.defn
def reports_context() -> list[bool]:
    return [workflow.in_workflow(), activity.in_activity(), is_in_activity_context()]


@activity.defn
def is_in_activity_context() -> bool:
    return activity.in_activity() and not workflow.in_workflow()


@scenario()
def in_workflow_and_in_activity_report_context(world: World) -> None:
    assert world.run(reports_context) == [True, False, True]
    assert not workflow.in_workflow()
    assert not activity.in_activity()


@workflow.defn
def reads_clocks() -> None:
    times = [workflow.now().timestamp(), workflow.time(), workflow.time_ns()]
    workflow.sleep(0.05)
    times.append(workflow.time_ns())

    @workflow.query
    def told() -> list[float]:
        return times


@scenario()
def workflow_clocks_return_time_of_workflow_task(world: World) -> None:
    handle = world.start(reads_clocks)
    handle.result(timeout=LIMIT)
    now, seconds, first, last = handle.query("told")
    assert now == pytest.approx(seconds, abs=1e-6)
    assert seconds == first / 1e9
    started = [e["eventTime"] for e in handle.history().events if e["eventType"].endswith("TASK_STARTED")]
    assert [nanoseconds_of(time) for time in started] == [first, last]
    assert last > first


def nanoseconds_of(text: str) -> int:
    """Convert a time of a history into nanoseconds since the epoch."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    moment = datetime.fromisoformat(seconds).replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int(fraction.ljust(9, "0") or 0)


@workflow.defn
def draws_random_values() -> None:
    drawn = [str(workflow.uuid4()), str(workflow.random().random())]

    @workflow.query
    def told() -> list[str]:
        return drawn


@scenario("loose", max_cached_workflows=0)
def random_values_differ_per_run_and_survive_worker_restart(world: World) -> None:
    handles = [world.start(draws_random_values), world.start(draws_random_values)]
    for handle in handles:
        handle.result(timeout=LIMIT)
    first, second = (handle.query("told") for handle in handles)
    assert not set(first) & set(second)
    world.start_worker()
    assert [handle.query("told") for handle in handles] == [first, second]
