"""Workflows with a cron schedule: which run follows, when, and what it knows of the ones before."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.errors import ApplicationError, CancelledError, ChildWorkflowError, ServiceError

from .scenario import scenario
from .world import World, kinds, successor

ONCE_MORE = RetryPolicy(initial_interval=0.1, maximum_attempts=2)


@workflow.defn
def three_runs() -> Any:
    """The first returns, the second fails, the third tells what it knows and waits."""
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


def last_run(world: World, handle: Any, count: int) -> Any:
    """The run at the end of a chain of so many, once it has begun to wait."""
    run_id = handle.run_id
    for _ in range(count - 1):
        before = world.client.get_workflow_handle(handle.id, run_id=run_id)
        world.until_true(lambda before=before: successor(before.history()), "a run that follows")
        run_id = successor(before.history())
    last = world.client.get_workflow_handle(handle.id, run_id=run_id)
    world.until(last, "TIMER_STARTED")
    return last


@scenario()
def a_cron_schedule(world: World) -> None:
    """A run follows a run that completed, and one that failed; it is given the last result and the last failure."""
    handle = world.start(three_runs, cron_schedule="@every 1s")
    last = last_run(world, handle, 3)
    details = last.query("__temporal_workflow_metadata")["currentDetails"]
    assert details == "1 ApplicationError the second fails attempt 1"
    last.cancel()
    assert isinstance(world.failure(handle), CancelledError)


@workflow.defn
def fails_and_waits() -> str:
    """Fails twice, then waits."""
    info = workflow.info()
    if info.attempt == 1 and workflow.last_failure() is not None:
        workflow.sleep(3600)
    raise ApplicationError(f"attempt {info.attempt} fails")


@scenario()
def a_cron_schedule_with_retries(world: World) -> None:
    """A run that fails is tried again before the schedule's next run."""
    handle = world.start(fails_and_waits, cron_schedule="@every 1s", retry_policy=ONCE_MORE)
    last = last_run(world, handle, 3)
    last.cancel()
    assert isinstance(world.failure(handle), CancelledError)


@scenario()
def a_cron_schedule_that_is_terminated(world: World) -> None:
    """Ending a run without asking it ends the schedule."""
    handle = world.start(three_runs, cron_schedule="@every 1h")
    assert kinds(handle.history()) == ["WORKFLOW_EXECUTION_STARTED"]
    handle.terminate("enough")
    assert "enough" in str(world.failure(handle))


@scenario()
def a_cron_schedule_that_makes_no_sense(world: World) -> None:
    """It is refused at the start."""
    for wrong in ("every day", "61 * * * *", "0 0 0 1 1 * 2030"):
        with pytest.raises(ServiceError):
            world.client.start_workflow(
                three_runs, id=f"{world.queue}-wrong", task_queue=world.queue, cron_schedule=wrong
            )


@workflow.defn
def has_a_clockwork_child() -> str:
    """Its child runs again and again, and is never done."""
    child = workflow.start_child_workflow(
        twice, id=f"{workflow.info().workflow_id}-child", cron_schedule="@every 1s"
    )
    try:
        child.result()
    except ChildWorkflowError as error:
        return f"{type(error.__cause__).__name__}"
    return "done"


@workflow.defn
def twice() -> int:
    """Returns once, then waits."""
    if workflow.has_last_completion_result():
        workflow.sleep(3600)
    return 1


@scenario()
def a_child_with_a_cron_schedule(world: World) -> None:
    """The parent hears of the end of the whole chain only."""
    handle = world.start(has_a_clockwork_child)
    world.until(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    child = world.client.get_workflow_handle(f"{handle.id}-child")
    world.until(child, "TIMER_STARTED")
    child.cancel()
    assert handle.result(timeout=60) == "CancelledError"
