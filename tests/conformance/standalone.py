"""Activities that belong to no workflow: started, looked at and ended by a client."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
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
from .world import World

LIMIT = 60
ONCE = RetryPolicy(maximum_attempts=1)


@activity.defn
def greets(name: str, times: int = 1) -> str:
    """A greeting."""
    return " ".join([f"hello {name}"] * times)


@activity.defn
def knows() -> dict[str, Any]:
    """What the attempt was given."""
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
def fails_first(times: int) -> int:
    """Fails so often."""
    attempt = activity.info().attempt
    if attempt <= times:
        raise ApplicationError(f"attempt {attempt}", type="Early")
    return attempt


@activity.defn(heartbeat_timeout=10)
def goes_on() -> str:
    """Until it is cancelled."""
    while True:
        activity.heartbeat("here")
        time.sleep(0.02)


def started(world: World, function: Any, *args: Any, **options: Any) -> ActivityExecutionHandle[Any]:
    """A standalone activity on the scenario's queue."""
    options.setdefault("id", f"alone-{uuid.uuid4().hex[:8]}")
    return world.client.start_activity(function, *args, task_queue=world.queue, **options)


def until(seen: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + LIMIT
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.02)


@scenario("loose")
def an_activity_by_itself(world: World) -> None:
    """Its result, by its function or its name; what an attempt knows; how it is described when it has ended."""
    assert world.client.execute_activity(greets, "a", 2, task_queue=world.queue) == "hello a hello a"
    assert world.client.execute_activity("greets", "b", task_queue=world.queue, result_type=str) == "hello b"
    handle = started(world, knows, priority_key=2, fairness_key="k", static_summary="one line")
    seen = handle.result(timeout=LIMIT)
    assert seen["workflow"] in (["", "", ""], ("", "", ""))
    assert (seen["id"], seen["run"], seen["queue"]) == (handle.id, handle.run_id, world.queue)
    assert list(seen["priority"]) == [2, "k"]
    described = handle.describe()
    assert (described.id, described.run_id) == (handle.id, handle.run_id)
    assert (described.status, described.activity_type) == (ActivityExecutionStatus.COMPLETED, "knows")
    assert (described.attempt, described.task_queue) == (1, world.queue)
    assert described.static_summary == "one line"
    assert described.close_time is not None
    assert described.options.priority_key == 2
    again = world.client.get_activity_execution_handle(handle.id, activity=knows)
    assert again.result(timeout=LIMIT)["id"] == handle.id


@scenario("loose")
def one_that_fails(world: World) -> None:
    """It is tried again by its policy; when that ends, the caller hears why."""
    assert started(world, fails_first, 2).result(timeout=LIMIT) == 3
    handle = started(world, fails_first, 5, retry_policy=ONCE)
    with pytest.raises(ActivityFailedError, match="attempt 1") as failed:
        handle.result(timeout=LIMIT)
    cause = failed.value.__cause__
    assert isinstance(cause, ApplicationError)
    assert cause.type == "Early"
    assert handle.describe().status == ActivityExecutionStatus.FAILED
    late = world.client.start_activity(
        greets, "x", task_queue=f"{world.queue}-nobody", schedule_to_start_timeout=timedelta(milliseconds=50)
    )
    with pytest.raises(ActivityFailedError) as timed_out:
        late.result(timeout=LIMIT)
    assert isinstance(timed_out.value.__cause__, TimedOutError)
    assert late.describe().status == ActivityExecutionStatus.TIMED_OUT


@scenario("loose")
def ending_one(world: World) -> None:
    """Cancelled while it waits, and while it runs; terminated; and what has ended is not there to be ended."""
    waiting = world.client.start_activity(greets, "x", task_queue=f"{world.queue}-nobody", start_delay=3600)
    waiting.cancel("no more")
    with pytest.raises(ActivityFailedError) as cancelled:
        waiting.result(timeout=LIMIT)
    assert isinstance(cancelled.value.__cause__, CancelledError)
    assert waiting.describe().status == ActivityExecutionStatus.CANCELED
    assert waiting.describe().canceled_reason == "no more"
    running = started(world, goes_on, retry_policy=ONCE)
    until(lambda: running.describe().state == "STARTED")
    until(lambda: bool(running.describe().heartbeat_details))
    running.cancel()
    with pytest.raises(ActivityFailedError) as stopped:
        running.result(timeout=LIMIT)
    assert isinstance(stopped.value.__cause__, CancelledError)
    ended = world.client.start_activity(greets, "x", task_queue=f"{world.queue}-nobody")
    with pytest.raises(TimeoutError, match="goes on"):
        ended.result(timeout=0.05)
    ended.terminate("enough")
    with pytest.raises(ActivityFailedError, match="enough") as terminated:
        ended.result(timeout=LIMIT)
    assert isinstance(terminated.value.__cause__, TerminatedError)
    assert ended.describe().status == ActivityExecutionStatus.TERMINATED
    with pytest.raises(ActivityNotFoundError):
        world.client.get_activity_execution_handle("nowhere").describe()


@scenario("loose")
def ids_of_activities(world: World) -> None:
    """An id that runs is refused, or used; one that has ended as its policy says. Starting is repeated by its request's id."""
    name = f"alone-{uuid.uuid4().hex[:8]}"
    first = started(world, greets, "x", id=name, start_delay=3600, request_id="r-1")
    assert started(world, greets, "x", id=name, start_delay=3600, request_id="r-1").run_id == first.run_id
    with pytest.raises(ActivityAlreadyStartedError) as taken:
        started(world, greets, "y", id=name)
    assert (taken.value.activity_id, taken.value.run_id) == (name, first.run_id)
    used = started(world, greets, "y", id=name, id_conflict_policy=IdConflictPolicy.USE_EXISTING)
    assert used.run_id == first.run_id
    first.terminate()
    with pytest.raises(ActivityAlreadyStartedError):
        started(world, greets, "y", id=name, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    second = started(world, greets, "y", id=name)
    assert second.result(timeout=LIMIT) == "hello y"
    assert second.run_id != first.run_id
    assert first.describe().status == ActivityExecutionStatus.TERMINATED
    with pytest.raises(UsageError, match="TERMINATE"):
        started(world, greets, "y", id_conflict_policy=IdConflictPolicy.TERMINATE_EXISTING)
    with pytest.raises(UsageError, match="say id"):
        started(world, greets, "y", activity_id="x")


@scenario("loose")
def pausing_one(world: World) -> None:
    """No attempt begins while it is paused; its options can be changed, and be as they were."""
    handle = world.client.start_activity(greets, "x", task_queue=f"{world.queue}-later", heartbeat_timeout=7)
    handle.pause("a while")
    until(lambda: handle.describe().state == "PAUSED" or handle.describe().status.name == "PAUSED")
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
def activities_are_listed(world: World) -> None:
    """Lists and counts of activities have no workflows, and those of workflows no activities."""
    kind = f"listed_{uuid.uuid4().hex[:8]}"
    handles = [
        world.client.start_activity(kind, task_queue=f"{world.queue}-nobody", start_to_close_timeout=60)
        for _ in range(3)
    ]
    query = f"ActivityType = '{kind}'"
    until(lambda: world.client.count_activities(query) == 3)
    assert {each.id for each in world.client.list_activities(query, page_size=2)} == {
        each.id for each in handles
    }
    page = world.client.list_activities_page(query, page_size=2)
    rest = world.client.list_activities_page(query, page_size=2, page_token=page.next_page_token)
    assert len(page.items) + len(rest.items) == 3
    handles[0].terminate()
    open_ones = f"{query} AND ExecutionStatus = 'Running'"
    until(lambda: world.client.count_activities(open_ones) == 2)
    (only,) = world.client.list_activities(f"ActivityId = '{handles[1].id}'")
    assert (only.run_id, only.status) == (handles[1].run_id, ActivityExecutionStatus.RUNNING)
    assert world.client.count_workflows(f"WorkflowId = '{handles[1].id}'") == 0
    assert not [each for each in world.client.list_workflows() if each.id.endswith(handles[1].id)]
    for each in handles[1:]:
        each.delete()
    until(lambda: world.client.count_activities(query) == 1)


@activity.defn(heartbeat_timeout=None)
def waits_outside() -> str:
    """Completed by a client."""
    activity.complete_async()


@scenario("loose")
def one_that_is_completed_from_outside(world: World) -> None:
    """A client that knows its id completes one that waits for that."""
    handle = started(world, waits_outside)
    until(lambda: handle.describe().state == "STARTED")
    outside = world.client.get_activity_handle(activity_id=handle.id)
    assert outside.heartbeat("half") is False
    outside.complete("from outside")
    assert handle.result(timeout=LIMIT) == "from outside"


# --- the same of a workflow's own -----------------------------------------------------------------------------------------


@workflow.defn
def asks_elsewhere(queue: str) -> str:
    """Asks for an activity on a queue that no worker serves."""
    return greets.options(task_queue=queue, activity_id="greets", heartbeat_timeout=7)("x")


@scenario("loose")
def pausing_one_of_a_workflow(world: World) -> None:
    """An activity of a workflow is paused, changed, put back and let go on, by the ids of both."""
    handle = world.start(asks_elsewhere, f"{world.queue}-later")
    world.until(handle, "ACTIVITY_TASK_SCHEDULED")
    asked = world.client.get_activity_handle(workflow_id=handle.id, activity_id="greets")
    asked.pause("a while")
    until(lambda: handle.describe().pending_activities[0].state == "PAUSED")
    changed = asked.update_options(task_queue=world.queue, start_to_close_timeout=5)
    assert (changed.task_queue, changed.start_to_close_timeout) == (world.queue, 5)
    assert asked.restore_original_options().task_queue == f"{world.queue}-later"
    asked.update_options(task_queue=world.queue)
    assert handle.describe().pending_activities[0].state == "PAUSED"
    asked.unpause()
    assert handle.result(timeout=LIMIT) == "hello x"
    with pytest.raises(UsageError, match="by its token"):
        world.client.get_activity_handle(token=b"t").pause()
