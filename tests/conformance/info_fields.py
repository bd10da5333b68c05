"""The fields of `workflow.info()` and `activity.info()`, which must be equal on every engine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hourglass import RetryPolicy, activity, workflow
from hourglass.converter import SearchAttributeKey

from .scenario import returns, scenario
from .world import World

KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")
MOMENT = SearchAttributeKey.for_datetime("CustomDatetimeField")

RETRIES = RetryPolicy(initial_interval=2, backoff_coefficient=3, maximum_interval=9, maximum_attempts=4)


def _comparable_info(info: workflow.Info) -> dict[str, Any]:
    """Return the fields of `workflow.info()` that are the same on every engine."""
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
def returns_info_before_and_after_changes() -> list[Any]:
    before = _comparable_info(workflow.info())
    workflow.upsert_memo({"b": 2, "a": None})
    workflow.upsert_search_attributes([KEYWORD.value_set("us")])
    workflow.sleep(0.01)
    after = _comparable_info(workflow.info())
    assert workflow.info().task_queue == workflow.info().workflow_id.rpartition("-")[0]
    return [before, after, workflow.info().history_length, workflow.info().parent, workflow.info().root]


@scenario()
def workflow_info_has_start_options_and_current_state(world: World) -> None:
    before, after, length, parent, root = world.run(
        returns_info_before_and_after_changes,
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
def returns_parent_and_root(parent_id: str, parent_run: str) -> list[Any]:
    info = workflow.info()
    assert info.parent is not None
    assert info.root is not None
    return [
        info.parent == workflow.ParentInfo(info.namespace, parent_run, parent_id),
        info.root == workflow.RootInfo(parent_run, parent_id),
        (info.parent_workflow_id, info.parent_run_id) == (parent_id, parent_run),
    ]


@returns([True, True, True])
@workflow.defn
def workflow_info_of_child_has_parent_and_root() -> list[Any]:
    info = workflow.info()
    return returns_parent_and_root(info.workflow_id, info.run_id)


def _comparable_activity_info(info: activity.Info) -> dict[str, Any]:
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
def returns_info_of_second_attempt() -> dict[str, Any]:
    """Fail once, so that the times of the first and the current attempt differ."""
    if activity.info().attempt == 1:
        raise ValueError("once more")
    return _comparable_activity_info(activity.info())


@workflow.defn
def collects_activity_info() -> list[dict[str, Any]]:
    again = RetryPolicy(initial_interval=0.01, backoff_coefficient=1.5, maximum_attempts=7)
    remote = returns_info_of_second_attempt.options(
        activity_id="mine",
        schedule_to_close_timeout=90,
        start_to_close_timeout=80,
        heartbeat_timeout=70,
        retry_policy=again,
        priority_key=3,
    )()
    local = returns_info_of_second_attempt.options(
        schedule_to_close_timeout=60, start_to_close_timeout=50, retry_policy=again
    ).local()
    return [remote, local]


@scenario()
def activity_info_has_ids_timeouts_policy_and_attempt_times(world: World) -> None:
    remote, local = world.run(collects_activity_info)
    assert remote["ids"] == ["mine", "returns_info_of_second_attempt", "collects_activity_info", True]
    assert remote["timeouts"] == ["0:01:30", "0:01:20", "0:01:10"]
    assert (remote["attempt"], remote["is_local"], remote["priority_key"]) == (2, False, 3)
    assert (local["attempt"], local["is_local"]) == (2, True)
    for info in (remote, local):
        assert info["times"]
        assert info["waited"]
        assert info["in_workflow"]
        assert info["queue_is_the_runs"]
        assert "maximum_attempts=7" in info["retry_policy"]
        assert "backoff_coefficient=1.5" in info["retry_policy"]
