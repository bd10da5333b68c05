"""Workflows with a cron schedule: which run follows, when, and what it knows of earlier runs."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.errors import ApplicationError, CancelledError, ChildWorkflowError, ServiceError

from .scenario import scenario
from .world import World, event_types, successor_run_id

ONCE_MORE = RetryPolicy(initial_interval=0.1, maximum_attempts=2)


@workflow.defn
def runs_three_times() -> Any:
    """The first run returns, the second fails, the third reports its last result and failure and waits."""
    info = workflow.info()
    assert (info.cron_schedule or "").startswith("@every")
    last = workflow.last_failure()
    if last is not None:
        workflow.set_current_details(
            f"{workflow.last_completion_result(int)} {type(last).__name__} {last} attempt {info.attempt}"
        )
        workflow.sleep(3600)
    if workflow.has_last_completion_result():
        raise ApplicationError("the second fails")
    assert workflow.last_completion_result(int) is None
    return 1


def last_run_of_chain(world: World, handle: Any, count: int) -> Any:
    """Return the last of `count` runs once it waits."""
    run_id = handle.run_id
    for _ in range(count - 1):
        before = world.client.get_workflow_handle(handle.id, run_id=run_id)
        world.wait_until(lambda before=before: successor_run_id(before.history()), "a run that follows")
        run_id = successor_run_id(before.history())
    last = world.client.get_workflow_handle(handle.id, run_id=run_id)
    world.wait_for_event(last, "TIMER_STARTED")
    return last


@scenario()
def cron_run_follows_completed_and_failed_runs_with_last_result_and_failure(world: World) -> None:
    handle = world.start(runs_three_times, cron_schedule="@every 1s")
    last = last_run_of_chain(world, handle, 3)
    details = last.query("__temporal_workflow_metadata")["currentDetails"]
    assert details == "1 ApplicationError the second fails attempt 1"
    last.cancel()
    assert isinstance(world.failure(handle), CancelledError)


@workflow.defn
def fails_twice_then_waits() -> str:
    info = workflow.info()
    if info.attempt == 1 and workflow.last_failure() is not None:
        workflow.sleep(3600)
    raise ApplicationError(f"attempt {info.attempt} fails")


@scenario()
def cron_workflow_retries_before_next_scheduled_run(world: World) -> None:
    handle = world.start(fails_twice_then_waits, cron_schedule="@every 1s", retry_policy=ONCE_MORE)
    last = last_run_of_chain(world, handle, 3)
    last.cancel()
    assert isinstance(world.failure(handle), CancelledError)


@scenario()
def termination_ends_cron_schedule(world: World) -> None:
    handle = world.start(runs_three_times, cron_schedule="@every 1h")
    assert event_types(handle.history()) == ["WORKFLOW_EXECUTION_STARTED"]
    handle.terminate("enough")
    assert "enough" in str(world.failure(handle))


@scenario()
def invalid_cron_schedule_is_rejected(world: World) -> None:
    for wrong in ("every day", "61 * * * *", "0 0 0 1 1 * 2030"):
        with pytest.raises(ServiceError):
            world.client.start_workflow(
                runs_three_times, id=f"{world.queue}-wrong", task_queue=world.queue, cron_schedule=wrong
            )


@workflow.defn
def runs_cron_child() -> str:
    child = workflow.start_child_workflow(
        returns_once_then_waits, id=f"{workflow.info().workflow_id}-child", cron_schedule="@every 1s"
    )
    try:
        child.result()
    except ChildWorkflowError as error:
        return f"{type(error.__cause__).__name__}"
    return "done"


@workflow.defn
def returns_once_then_waits() -> int:
    if workflow.has_last_completion_result():
        workflow.sleep(3600)
    return 1


@scenario()
def parent_waits_for_end_of_cron_child(world: World) -> None:
    handle = world.start(runs_cron_child)
    world.wait_for_event(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    child = world.client.get_workflow_handle(f"{handle.id}-child")
    world.wait_for_event(child, "TIMER_STARTED")
    child.cancel()
    assert handle.result(timeout=60) == "CancelledError"
