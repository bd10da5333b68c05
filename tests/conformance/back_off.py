"""A run that waits for its first task, because its start is delayed, or it is a next attempt or the next run of a cron
schedule: what reaches it at once, and what waits with it.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import ApplicationError, CancelledError, ServiceError, WorkflowContinuedAsNewError

from .scenario import scenario
from .world import World, kinds, successor

LONG = 3600.0
"""No scenario could wait so long: what happens, happened at once."""

STARTED = ["WORKFLOW_EXECUTION_STARTED"]


@workflow.defn
class Counter:
    """Waits until it was told something; the first of several attempts fails."""

    def __init__(self) -> None:
        self.told = 0

    @workflow.run
    def run(self, fails_first: bool = False) -> int:
        """Until it was told."""
        if fails_first and workflow.info().attempt == 1:
            raise ApplicationError("the first attempt fails")
        workflow.wait_condition(lambda: self.told > 0)
        return self.told

    @workflow.signal
    def tell(self) -> None:
        """Count."""
        self.told += 1

    @workflow.update
    def tell_and_ask(self) -> int:
        """Count, and say how many."""
        self.told += 1
        return self.told

    @workflow.query
    def how_many(self) -> int:
        """How many so far."""
        return self.told


def second_attempt(world: World, handle: WorkflowHandle[Any]) -> WorkflowHandle[Any]:
    """The run that follows a first attempt that fails."""
    first = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
    world.until(first, "WORKFLOW_EXECUTION_FAILED")
    return world.client.get_workflow_handle(handle.id, run_id=successor(first.history()))


def waiting_attempt(world: World) -> WorkflowHandle[Any]:
    """A second attempt that begins in an hour."""
    later = RetryPolicy(initial_interval=LONG, maximum_attempts=2)
    return second_attempt(world, world.start(Counter.run, True, retry_policy=later))


@scenario()
def a_delayed_start_is_cancelled_at_once(world: World) -> None:
    """A cancellation does not wait for the delay to pass."""
    handle = world.start(Counter.run, start_delay=LONG)
    assert kinds(handle.history()) == STARTED
    handle.cancel("enough")
    assert isinstance(world.failure(handle), CancelledError)


@scenario()
def a_delayed_start_is_begun_by_a_start_with_a_signal(world: World) -> None:
    """A signal that comes with a start begins the run that is there; a plain one waits with it."""
    handle = world.start(Counter.run, start_delay=LONG)
    handle.signal(Counter.tell)
    assert kinds(handle.history()) == [*STARTED, "WORKFLOW_EXECUTION_SIGNALED"]
    again = world.client.start_workflow(
        Counter.run, id=handle.id, task_queue=world.queue, start_signal=Counter.tell
    )
    assert again.run_id == handle.run_id
    assert handle.result(timeout=60) == 2


@scenario()
def a_delayed_start_is_begun_by_an_update(world: World) -> None:
    """An update begins the run that is there."""
    handle = world.start(Counter.run, start_delay=LONG)
    assert handle.execute_update(Counter.tell_and_ask) == 1
    assert handle.result(timeout=60) == 1


@scenario()
def a_signal_at_the_start_waits_for_its_delay(world: World) -> None:
    """A run that is started with a signal and a delay begins when the delay has passed."""
    handle = world.start(Counter.run, start_delay=0.5, start_signal=Counter.tell)
    assert kinds(handle.history()) == [*STARTED, "WORKFLOW_EXECUTION_SIGNALED"]
    assert handle.result(timeout=60) == 1


@scenario()
def a_query_waits_for_a_delayed_start(world: World) -> None:
    """A query is answered when the run has had its first task."""
    handle = world.start(Counter.run, start_delay=0.5)
    assert handle.query(Counter.how_many) == 0
    assert "WORKFLOW_TASK_COMPLETED" in kinds(handle.history())
    handle.signal(Counter.tell)
    assert handle.result(timeout=60) == 1


@scenario()
def a_run_that_closed_before_its_first_task_answers_nothing(world: World) -> None:
    """A run that was terminated before a worker had it cannot be asked."""
    handle = world.start(Counter.run, start_delay=LONG)
    handle.terminate()
    with pytest.raises(ServiceError) as caught:
        handle.query(Counter.how_many)
    assert caught.value.status == "FAILED_PRECONDITION"
    assert "terminated by user via frontend" in str(world.failure(handle))


@scenario()
def a_query_waits_for_a_worker(world: World) -> None:
    """A query to a queue that no worker serves is answered when one comes."""
    world.stop_worker()
    handle = world.start(Counter.run)
    answers: list[int] = []
    asker = threading.Thread(target=lambda: answers.append(handle.query(Counter.how_many)), daemon=True)
    asker.start()
    world.start_worker()
    asker.join(20)
    assert answers == [0]
    handle.signal(Counter.tell)
    assert handle.result(timeout=60) == 1


@scenario()
def a_next_attempt_is_cancelled_at_once(world: World) -> None:
    """A cancellation does not wait for the back-off of a workflow's retry."""
    last = waiting_attempt(world)
    last.cancel()
    assert isinstance(world.failure(last), CancelledError)


@scenario()
def a_next_attempt_is_begun_by_a_start_with_a_signal(world: World) -> None:
    """Neither does a signal that comes with a start."""
    last = waiting_attempt(world)
    world.client.start_workflow(Counter.run, id=last.id, task_queue=world.queue, start_signal=Counter.tell)
    assert last.result(timeout=60) == 1


@scenario()
def a_next_attempt_is_begun_by_an_update(world: World) -> None:
    """Nor does an update; a plain signal does."""
    last = waiting_attempt(world)
    last.signal(Counter.tell)
    assert kinds(last.history()) == [*STARTED, "WORKFLOW_EXECUTION_SIGNALED"]
    assert last.execute_update(Counter.tell_and_ask) == 2
    assert last.result(timeout=60) == 2


@scenario()
def a_run_of_a_cron_schedule_is_cancelled_at_once(world: World) -> None:
    """A cancellation does not wait until the schedule's next run begins."""
    handle = world.start(Counter.run, cron_schedule="@every 1h")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)


@workflow.defn
def cancels(workflow_id: str) -> str:
    """Cancels another workflow."""
    workflow.get_external_workflow_handle(workflow_id).cancel("from another")
    return "asked"


@scenario()
def a_delayed_start_is_cancelled_by_another_workflow(world: World) -> None:
    """A workflow's request to cancel is as quick as a client's."""
    handle = world.start(Counter.run, start_delay=LONG)
    assert world.run(cancels, handle.id) == "asked"
    assert isinstance(world.failure(handle), CancelledError)


@workflow.defn
def one_of_many() -> int:
    """A run of a cron schedule, or of several attempts."""
    if workflow.info().cron_schedule is None and workflow.info().attempt == 1:
        raise ApplicationError("the first attempt fails")
    return workflow.info().attempt


@scenario()
def runs_that_others_follow_are_told_as_continued(world: World) -> None:
    """Who does not follow runs is told that there is another, whatever the first one came to."""
    again = world.start(
        one_of_many, retry_policy=RetryPolicy(initial_interval=0.05, maximum_attempts=2), task_timeout=10
    )
    assert again.result(timeout=60) == 2
    cron = world.start(one_of_many, cron_schedule="@every 1s")
    for handle in (again, cron):
        first = world.client.get_workflow_handle(handle.id, run_id=handle.run_id)
        with pytest.raises(WorkflowContinuedAsNewError) as caught:
            first.result(timeout=20, follow_runs=False)
        assert caught.value.new_run_id == successor(first.history())
    world.handles.remove(cron)
    world.client.get_workflow_handle(cron.id).terminate("enough")
