"""Activities without a workflow: started, described and ended by a client."""

from __future__ import annotations

import time
import uuid
from datetime import timedelta
from typing import Any

import pytest

from hourglass import RetryPolicy, activity, workflow
from hourglass.client import ActivityExecutionHandle, ActivityExecutionStatus, IdConflictPolicy, IdReusePolicy
from hourglass.errors import (
    ActivityAlreadyStartedError,
    ActivityFailedError,
    ActivityNotFoundError,
    ApplicationError,
    CancelledError,
    TerminatedError,
    TimedOutError,
    UsageError,
)

from .scenario import scenario
from .world import LIMIT, World

ONCE = RetryPolicy(maximum_attempts=1)


@activity.defn
def say_hello(name: str, times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)


@activity.defn
def returns_its_info() -> dict[str, Any]:
    info = activity.info()
    return {
        "workflow": (info.workflow_id, info.workflow_run_id, info.workflow_type),
        "id": info.activity_id,
        "run": info.activity_run_id,
        "attempt": info.attempt,
        "queue": info.task_queue,
        "priority": (info.priority_key, info.fairness_key),
    }


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01))
def fails_first_attempts(times: int) -> int:
    attempt = activity.info().attempt
    if attempt <= times:
        raise ApplicationError(f"attempt {attempt}", type="Early")
    return attempt


@activity.defn(heartbeat_timeout=10)
def heartbeats_until_cancelled() -> str:
    while True:
        activity.heartbeat("here")
        time.sleep(0.02)


def start_standalone(world: World, function: Any, *args: Any, **options: Any) -> ActivityExecutionHandle[Any]:
    options.setdefault("id", f"alone-{uuid.uuid4().hex[:8]}")
    return world.client.start_activity(function, *args, task_queue=world.queue, **options)


@scenario("loose")
def standalone_activity_returns_result_and_is_described(world: World) -> None:
    assert world.client.execute_activity(say_hello, "a", 2, task_queue=world.queue) == "hello a hello a"
    assert (
        world.client.execute_activity("say_hello", "b", task_queue=world.queue, result_type=str) == "hello b"
    )
    handle = start_standalone(
        world, returns_its_info, priority_key=2, fairness_key="k", static_summary="one line"
    )
    seen = handle.result(timeout=LIMIT)
    assert seen["workflow"] in (["", "", ""], ("", "", ""))
    assert (seen["id"], seen["run"], seen["queue"]) == (handle.id, handle.run_id, world.queue)
    assert list(seen["priority"]) == [2, "k"]
    described = handle.describe()
    assert (described.id, described.run_id) == (handle.id, handle.run_id)
    assert (described.status, described.activity_type) == (
        ActivityExecutionStatus.COMPLETED,
        "returns_its_info",
    )
    assert (described.attempt, described.task_queue) == (1, world.queue)
    assert described.static_summary == "one line"
    assert described.close_time is not None
    assert described.options.priority_key == 2
    again = world.client.get_activity_execution_handle(handle.id, activity=returns_its_info)
    assert again.result(timeout=LIMIT)["id"] == handle.id


@scenario("loose")
def standalone_activity_retries_fails_and_times_out(world: World) -> None:
    assert start_standalone(world, fails_first_attempts, 2).result(timeout=LIMIT) == 3
    handle = start_standalone(world, fails_first_attempts, 5, retry_policy=ONCE)
    with pytest.raises(ActivityFailedError, match="attempt 1") as failed:
        handle.result(timeout=LIMIT)
    cause = failed.value.__cause__
    assert isinstance(cause, ApplicationError)
    assert cause.type == "Early"
    assert handle.describe().status == ActivityExecutionStatus.FAILED
    late = world.client.start_activity(
        say_hello,
        "x",
        task_queue=f"{world.queue}-nobody",
        schedule_to_start_timeout=timedelta(milliseconds=50),
    )
    with pytest.raises(ActivityFailedError) as timed_out:
        late.result(timeout=LIMIT)
    assert isinstance(timed_out.value.__cause__, TimedOutError)
    assert late.describe().status == ActivityExecutionStatus.TIMED_OUT


@scenario("loose")
def standalone_activity_can_be_cancelled_and_terminated(world: World) -> None:
    waiting = world.client.start_activity(
        say_hello, "x", task_queue=f"{world.queue}-nobody", start_delay=3600
    )
    waiting.cancel("no more")
    with pytest.raises(ActivityFailedError) as cancelled:
        waiting.result(timeout=LIMIT)
    assert isinstance(cancelled.value.__cause__, CancelledError)
    assert waiting.describe().status == ActivityExecutionStatus.CANCELED
    assert waiting.describe().canceled_reason == "no more"
    running = start_standalone(world, heartbeats_until_cancelled, retry_policy=ONCE)
    world.wait_until(lambda: running.describe().state == "STARTED")
    world.wait_until(lambda: bool(running.describe().heartbeat_details))
    running.cancel()
    with pytest.raises(ActivityFailedError) as stopped:
        running.result(timeout=LIMIT)
    assert isinstance(stopped.value.__cause__, CancelledError)
    ended = world.client.start_activity(say_hello, "x", task_queue=f"{world.queue}-nobody")
    with pytest.raises(TimeoutError, match="it continues"):
        ended.result(timeout=0.05)
    ended.terminate("enough")
    with pytest.raises(ActivityFailedError, match="enough") as terminated:
        ended.result(timeout=LIMIT)
    assert isinstance(terminated.value.__cause__, TerminatedError)
    assert ended.describe().status == ActivityExecutionStatus.TERMINATED
    with pytest.raises(ActivityNotFoundError):
        world.client.get_activity_execution_handle("nowhere").describe()


@scenario("loose")
def standalone_activity_id_policies_and_request_id_apply(world: World) -> None:
    name = f"alone-{uuid.uuid4().hex[:8]}"
    first = start_standalone(world, say_hello, "x", id=name, start_delay=3600, request_id="r-1")
    assert (
        start_standalone(world, say_hello, "x", id=name, start_delay=3600, request_id="r-1").run_id
        == first.run_id
    )
    with pytest.raises(ActivityAlreadyStartedError) as conflict:
        start_standalone(world, say_hello, "y", id=name)
    assert (conflict.value.activity_id, conflict.value.run_id) == (name, first.run_id)
    existing = start_standalone(
        world, say_hello, "y", id=name, id_conflict_policy=IdConflictPolicy.USE_EXISTING
    )
    assert existing.run_id == first.run_id
    first.terminate()
    with pytest.raises(ActivityAlreadyStartedError):
        start_standalone(world, say_hello, "y", id=name, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    second = start_standalone(world, say_hello, "y", id=name)
    assert second.result(timeout=LIMIT) == "hello y"
    assert second.run_id != first.run_id
    assert first.describe().status == ActivityExecutionStatus.TERMINATED
    with pytest.raises(UsageError, match="TERMINATE"):
        start_standalone(world, say_hello, "y", id_conflict_policy=IdConflictPolicy.TERMINATE_EXISTING)
    with pytest.raises(UsageError, match="use id"):
        start_standalone(world, say_hello, "y", activity_id="x")


@scenario("loose")
def paused_standalone_activity_starts_no_attempt_and_options_can_change(world: World) -> None:
    handle = world.client.start_activity(
        say_hello, "x", task_queue=f"{world.queue}-later", heartbeat_timeout=7
    )
    handle.pause("a while")
    world.wait_until(lambda: handle.describe().state == "PAUSED" or handle.describe().status.name == "PAUSED")
    changed = handle.update_options(task_queue=world.queue, start_to_close_timeout=5, heartbeat_timeout=None)
    assert (changed.task_queue, changed.start_to_close_timeout, changed.heartbeat_timeout) == (
        world.queue,
        5,
        0,
    )
    assert handle.restore_original_options().heartbeat_timeout == 7
    handle.update_options(
        task_queue=world.queue, retry_policy=RetryPolicy(maximum_attempts=3), priority_key=4
    )
    seen = handle.describe().options
    assert (seen.task_queue, seen.priority_key) == (world.queue, 4)
    assert seen.retry_policy is not None
    assert seen.retry_policy.maximum_attempts == 3
    handle.unpause()
    assert handle.result(timeout=LIMIT) == "hello x"
    with pytest.raises(UsageError, match="not id"):
        handle.update_options(id="x")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="at least one"):
        handle.update_options()


@scenario("loose")
def standalone_activities_are_listed_apart_from_workflows(world: World) -> None:
    kind = f"listed_{uuid.uuid4().hex[:8]}"
    handles = [
        world.client.start_activity(kind, task_queue=f"{world.queue}-nobody", start_to_close_timeout=60)
        for _ in range(3)
    ]
    query = f"ActivityType = '{kind}'"
    world.wait_until(lambda: world.client.count_activities(query) == 3)
    assert {execution.id for execution in world.client.list_activities(query, page_size=2)} == {
        execution.id for execution in handles
    }
    page = world.client.list_activities_page(query, page_size=2)
    second_page = world.client.list_activities_page(query, page_size=2, page_token=page.next_page_token)
    assert len(page.items) + len(second_page.items) == 3
    handles[0].terminate()
    open_query = f"{query} AND ExecutionStatus = 'Running'"
    world.wait_until(lambda: world.client.count_activities(open_query) == 2)
    (found,) = world.client.list_activities(f"ActivityId = '{handles[1].id}'")
    assert (found.run_id, found.status) == (handles[1].run_id, ActivityExecutionStatus.RUNNING)
    assert world.client.count_workflows(f"WorkflowId = '{handles[1].id}'") == 0
    assert not [
        execution for execution in world.client.list_workflows() if execution.id.endswith(handles[1].id)
    ]
    for execution in handles[1:]:
        execution.delete()
    world.wait_until(lambda: world.client.count_activities(query) == 1)


@activity.defn(heartbeat_timeout=None)
def awaits_external_completion() -> str:
    activity.complete_async()


@scenario("loose")
def standalone_activity_is_completed_by_client_with_id(world: World) -> None:
    handle = start_standalone(world, awaits_external_completion)
    world.wait_until(lambda: handle.describe().state == "STARTED")
    activity_handle = world.client.get_activity_handle(activity_id=handle.id)
    assert activity_handle.heartbeat("half") is False
    activity_handle.complete("from outside")
    assert handle.result(timeout=LIMIT) == "from outside"


# --- the same of a workflow's own -----------------------------------------------------------------------------------------


@workflow.defn
def calls_activity_on_queue_without_worker(queue: str) -> str:
    return say_hello.options(task_queue=queue, activity_id="say_hello", heartbeat_timeout=7)("x")


@scenario("loose")
def activity_of_workflow_can_be_paused_and_changed_by_ids(world: World) -> None:
    handle = world.start(calls_activity_on_queue_without_worker, f"{world.queue}-later")
    world.wait_for_event(handle, "ACTIVITY_TASK_SCHEDULED")
    activity_handle = world.client.get_activity_handle(workflow_id=handle.id, activity_id="say_hello")
    activity_handle.pause("a while")
    world.wait_until(lambda: handle.describe().pending_activities[0].state == "PAUSED")
    changed = activity_handle.update_options(task_queue=world.queue, start_to_close_timeout=5)
    assert (changed.task_queue, changed.start_to_close_timeout) == (world.queue, 5)
    assert activity_handle.restore_original_options().task_queue == f"{world.queue}-later"
    activity_handle.update_options(task_queue=world.queue)
    assert handle.describe().pending_activities[0].state == "PAUSED"
    activity_handle.unpause()
    assert handle.result(timeout=LIMIT) == "hello x"
    with pytest.raises(UsageError, match="by its token"):
        world.client.get_activity_handle(token=b"t").pause()
