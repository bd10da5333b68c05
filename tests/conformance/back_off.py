"""Runs that wait for their first task during a start delay, a retry backoff or a cron backoff: which messages end the wait."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import ApplicationError, CancelledError, ServiceError, WorkflowContinuedAsNewError

from .scenario import scenario
from .world import World, event_types, successor_run_id

LONG = 3600.0
"""Longer than any scenario may wait, in seconds."""

STARTED = ["WORKFLOW_EXECUTION_STARTED"]


@workflow.defn
class CountsSignals:
    """Waits for a signal or update; optionally fails its first attempt."""

    def __init__(self) -> None:
        self.count = 0

    @workflow.run
    def run(self, fails_first: bool = False) -> int:
        if fails_first and workflow.info().attempt == 1:
            raise ApplicationError("the first attempt fails")
        workflow.wait_condition(lambda: self.count > 0)
        return self.count

    @workflow.signal
    def increment(self) -> None:
        self.count += 1

    @workflow.update
    def increment_and_get(self) -> int:
        self.count += 1
        return self.count

    @workflow.query
    def current_count(self) -> int:
        return self.count


def second_attempt(world: World, handle: WorkflowHandle[Any]) -> WorkflowHandle[Any]:
    """Return the run that follows the failed first attempt."""
    first = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
    world.wait_for_event(first, "WORKFLOW_EXECUTION_FAILED")
    return world.client.get_workflow_handle(handle.id, run_id=successor_run_id(first.history()))


def attempt_in_backoff(world: World) -> WorkflowHandle[Any]:
    """Return a second attempt that starts in an hour."""
    later = RetryPolicy(initial_interval=LONG, maximum_attempts=2)
    return second_attempt(world, world.start(CountsSignals.run, True, retry_policy=later))


@scenario()
def cancellation_ends_delayed_start_immediately(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=LONG)
    assert event_types(handle.history()) == STARTED
    handle.cancel("enough")
    assert isinstance(world.failure(handle), CancelledError)


@scenario()
def signal_with_start_begins_delayed_start(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=LONG)
    handle.signal(CountsSignals.increment)
    assert event_types(handle.history()) == [*STARTED, "WORKFLOW_EXECUTION_SIGNALED"]
    again = world.client.start_workflow(
        CountsSignals.run, id=handle.id, task_queue=world.queue, start_signal=CountsSignals.increment
    )
    assert again.run_id == handle.run_id
    assert handle.result(timeout=60) == 2


@scenario()
def update_begins_delayed_start(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=LONG)
    assert handle.execute_update(CountsSignals.increment_and_get) == 1
    assert handle.result(timeout=60) == 1


@scenario()
def start_signal_waits_for_start_delay(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=0.5, start_signal=CountsSignals.increment)
    assert event_types(handle.history()) == [*STARTED, "WORKFLOW_EXECUTION_SIGNALED"]
    assert handle.result(timeout=60) == 1


@scenario()
def query_waits_for_first_task_of_delayed_start(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=0.5)
    assert handle.query(CountsSignals.current_count) == 0
    assert "WORKFLOW_TASK_COMPLETED" in event_types(handle.history())
    handle.signal(CountsSignals.increment)
    assert handle.result(timeout=60) == 1


@scenario()
def query_of_run_closed_before_first_task_is_rejected(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=LONG)
    handle.terminate()
    with pytest.raises(ServiceError) as caught:
        handle.query(CountsSignals.current_count)
    assert caught.value.status == "FAILED_PRECONDITION"
    assert "terminated by user via frontend" in str(world.failure(handle))


@scenario()
def query_waits_for_a_worker(world: World) -> None:
    world.stop_worker()
    handle = world.start(CountsSignals.run)
    answers: list[int] = []
    asker = threading.Thread(
        target=lambda: answers.append(handle.query(CountsSignals.current_count)), daemon=True
    )
    asker.start()
    world.start_worker()
    asker.join(20)
    assert answers == [0]
    handle.signal(CountsSignals.increment)
    assert handle.result(timeout=60) == 1


@scenario()
def cancellation_ends_retry_backoff_immediately(world: World) -> None:
    last = attempt_in_backoff(world)
    last.cancel()
    assert isinstance(world.failure(last), CancelledError)


@scenario()
def signal_with_start_ends_retry_backoff(world: World) -> None:
    last = attempt_in_backoff(world)
    world.client.start_workflow(
        CountsSignals.run, id=last.id, task_queue=world.queue, start_signal=CountsSignals.increment
    )
    assert last.result(timeout=60) == 1


@scenario()
def update_ends_retry_backoff(world: World) -> None:
    last = attempt_in_backoff(world)
    last.signal(CountsSignals.increment)
    assert event_types(last.history()) == [*STARTED, "WORKFLOW_EXECUTION_SIGNALED"]
    assert last.execute_update(CountsSignals.increment_and_get) == 2
    assert last.result(timeout=60) == 2


@scenario()
def cancellation_ends_cron_backoff_immediately(world: World) -> None:
    handle = world.start(CountsSignals.run, cron_schedule="@every 1h")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)


@workflow.defn
def cancels_workflow(workflow_id: str) -> str:
    workflow.get_external_workflow_handle(workflow_id).cancel("from another")
    return "asked"


@scenario()
def cancellation_by_workflow_ends_delayed_start_immediately(world: World) -> None:
    handle = world.start(CountsSignals.run, start_delay=LONG)
    assert world.run(cancels_workflow, handle.id) == "asked"
    assert isinstance(world.failure(handle), CancelledError)


@workflow.defn
def fails_first_attempt_unless_cron() -> int:
    if workflow.info().cron_schedule is None and workflow.info().attempt == 1:
        raise ApplicationError("the first attempt fails")
    return workflow.info().attempt


@scenario()
def result_without_follow_runs_raises_continued_as_new_for_retry_and_cron(world: World) -> None:
    retried = world.start(
        fails_first_attempt_unless_cron,
        retry_policy=RetryPolicy(initial_interval=0.05, maximum_attempts=2),
        task_timeout=10,
    )
    assert retried.result(timeout=60) == 2
    cron = world.start(fails_first_attempt_unless_cron, cron_schedule="@every 1s")
    for handle in (retried, cron):
        first = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
        with pytest.raises(WorkflowContinuedAsNewError) as caught:
            first.result(timeout=20, follow_runs=False)
        assert caught.value.new_run_id == successor_run_id(first.history())
    world.handles.remove(cron)
    world.client.get_workflow_handle(cron.id).terminate("enough")
