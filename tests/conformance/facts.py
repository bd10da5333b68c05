"""What workflows and activities know of themselves: every field of `info()` that Temporal's SDK has, the same everywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.converter import SearchAttributeKey

from .scenario import scenario
from .world import World

KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")
MOMENT = SearchAttributeKey.for_datetime("CustomDatetimeField")

RETRIES = RetryPolicy(initial_interval=2, backoff_coefficient=3, maximum_interval=9, maximum_attempts=4)


def _plain(info: workflow.Info) -> dict[str, Any]:
    """What is the same wherever a run is executed."""
    return {
        "attempt": info.attempt,
        "cron_schedule": info.cron_schedule,
        "continued": info.continued_run_id is not None,
        "is_first": info.first_execution_run_id == info.run_id == info.original_execution_run_id,
        "timeouts": [str(info.execution_timeout), str(info.run_timeout), str(info.task_timeout)],
        "namespace": info.namespace,
        "priority_key": info.priority_key,
        "retry_policy": repr(info.retry_policy),
        "memo": sorted(info.raw_memo),
        "search_attributes": {name: str(value) for name, value in sorted(info.search_attributes.items())},
        "times": info.workflow_start_time <= info.start_time <= workflow.now(),
        "length": info.get_current_history_length() == info.history_length,
        "size": info.get_current_history_size() == info.history_size > 0,
        "reasons": list(info.continue_as_new_reasons),
        "type": info.workflow_type,
        "headers": dict(info.headers),
    }


@workflow.defn
def knows_itself() -> list[Any]:
    """Tells all about itself, at its beginning and after it changed what can be changed."""
    before = _plain(workflow.info())
    workflow.upsert_memo({"b": 2, "a": None})
    workflow.upsert_search_attributes([KEYWORD.value_set("us")])
    workflow.sleep(0.01)
    after = _plain(workflow.info())
    assert workflow.info().task_queue == workflow.info().workflow_id.rpartition("-")[0]
    return [before, after, workflow.info().history_length, workflow.info().parent, workflow.info().root]


@scenario()
def a_workflow_knows_what_it_was_started_with(world: World) -> None:
    """`workflow.info()` has timeouts, policies, memo and search attributes as they stand, times and the history's length."""
    before, after, length, parent, root = world.run(
        knows_itself,
        execution_timeout=600,
        run_timeout=500,
        task_timeout=9,
        retry_policy=RETRIES,
        priority_key=2,
        memo={"a": 1},
        search_attributes=[KEYWORD.value_set("eu"), MOMENT.value_set(datetime(2030, 1, 2, tzinfo=UTC))],
    )
    assert before["timeouts"] == ["0:10:00", "0:08:20", "0:00:09"]
    assert before["retry_policy"] == repr(RETRIES).replace("interval=2", "interval=2.0").replace(
        "coefficient=3", "coefficient=3.0"
    ).replace("interval=9", "interval=9.0")
    assert (before["priority_key"], before["memo"]) == (2, ["a"])
    assert before["times"]
    assert before["is_first"]
    assert before["size"]
    assert before["search_attributes"]["CustomKeywordField"] == "eu"
    assert after["search_attributes"]["CustomKeywordField"] == "us"
    assert after["memo"] == ["b"]
    assert length > 3
    assert (parent, root) == (None, None)


@workflow.defn
def knows_its_family(parent_id: str, parent_run: str) -> list[Any]:
    """Compares what it is told with whose child it is."""
    info = workflow.info()
    assert info.parent is not None
    assert info.root is not None
    return [
        info.parent == workflow.ParentInfo(info.namespace, parent_run, parent_id),
        info.root == workflow.RootInfo(parent_run, parent_id),
        (info.parent_workflow_id, info.parent_run_id) == (parent_id, parent_run),
    ]


@workflow.defn
def has_a_child_that_knows() -> list[Any]:
    info = workflow.info()
    return knows_its_family(info.workflow_id, info.run_id)


@scenario()
def a_child_knows_its_parent_and_its_root(world: World) -> None:
    """`workflow.info()` of a child has its parent and the workflow at the top of the family."""
    assert world.run(has_a_child_that_knows) == [True, True, True]


def _attempt(info: activity.Info) -> dict[str, Any]:
    scheduled, now, started = info.scheduled_time, info.current_attempt_scheduled_time, info.started_time
    assert scheduled is not None
    assert now is not None
    assert started is not None
    return {
        "ids": [info.activity_id, info.activity_type, info.workflow_type, bool(info.workflow_run_id)],
        "attempt": info.attempt,
        "is_local": info.is_local,
        "in_workflow": info.in_workflow,
        "namespace": [info.namespace, info.workflow_namespace],
        "timeouts": [
            str(info.schedule_to_close_timeout),
            str(info.start_to_close_timeout),
            str(info.heartbeat_timeout),
        ],
        "priority_key": info.priority_key,
        "retry_policy": repr(info.retry_policy),
        "times": scheduled <= now <= started,
        # Core gives a local activity the time of its first attempt for all of them.
        "waited": scheduled < now or info.is_local,
        "has_token": bool(info.task_token),
        "queue_is_the_runs": info.task_queue == info.workflow_id.rpartition("-")[0],
    }


@activity.defn
def tells_at_the_second_attempt() -> dict[str, Any]:
    """Fails once, so that the two times differ."""
    if activity.info().attempt == 1:
        raise ValueError("once more")
    return _attempt(activity.info())


@workflow.defn
def asks_what_an_activity_knows() -> list[dict[str, Any]]:
    again = RetryPolicy(initial_interval=0.01, backoff_coefficient=1.5, maximum_attempts=7)
    remote = tells_at_the_second_attempt.options(
        activity_id="mine",
        schedule_to_close_timeout=90,
        start_to_close_timeout=80,
        heartbeat_timeout=70,
        retry_policy=again,
        priority_key=3,
    )()
    local = tells_at_the_second_attempt.options(
        schedule_to_close_timeout=60, start_to_close_timeout=50, retry_policy=again
    ).local()
    return [remote, local]


@scenario()
def an_activity_knows_its_attempt(world: World) -> None:
    """`activity.info()` has ids, timeouts, policy, priority, and when this attempt and the first were due, local or not."""
    remote, local = world.run(asks_what_an_activity_knows)
    assert remote["ids"] == ["mine", "tells_at_the_second_attempt", "asks_what_an_activity_knows", True]
    assert remote["timeouts"] == ["0:01:30", "0:01:20", "0:01:10"]
    assert (remote["attempt"], remote["is_local"], remote["priority_key"]) == (2, False, 3)
    assert (local["attempt"], local["is_local"]) == (2, True)
    for each in (remote, local):
        assert each["times"]
        assert each["waited"]
        assert each["in_workflow"]
        assert each["queue_is_the_runs"]
        assert "maximum_attempts=7" in each["retry_policy"]
        assert "backoff_coefficient=1.5" in each["retry_policy"]
