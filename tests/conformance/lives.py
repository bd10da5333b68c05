"""Beginnings and ends of runs: ids, delays, timeouts, retries, chains, and what a client is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.client import IdConflictPolicy, IdReusePolicy, WorkflowStatus
from hourglass.errors import (
    ApplicationError,
    CancelledError,
    TimedOutError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)

from . import acts
from .scenario import scenario
from .world import World, kinds, successor

QUICK = RetryPolicy(initial_interval=0.02, maximum_attempts=3)


@workflow.defn
def waits_for_word() -> str:
    return str(workflow.Channel("word", str).receive())


@workflow.defn
def gives(value: Any) -> Any:
    return value


@workflow.defn
def breaks(kind: str) -> None:
    raise ApplicationError("broken", type=kind)


@scenario()
def start_delay(world: World) -> None:
    """A run that starts later exists at once; its first task comes after the delay, which its start records."""
    handle = world.start(gives, 1, start_delay=0.2)
    assert kinds(handle.history()) == ["WORKFLOW_EXECUTION_STARTED"]
    assert handle.result(timeout=60) == 1
    started = handle.history().events[0]["workflowExecutionStartedEventAttributes"]
    assert started["firstWorkflowTaskBackoff"] == "0.200s"


@scenario()
def terminated_before_its_delay(world: World) -> None:
    """A run that has not begun can be terminated."""
    handle = world.start(gives, 1, start_delay=3600)
    handle.terminate("never mind")
    assert "never mind" in str(world.failure(handle))
    assert kinds(handle.history()) == ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_EXECUTION_TERMINATED"]


@scenario()
def execution_timeout(world: World) -> None:
    """The time for all runs of a chain ends a run, too."""
    assert isinstance(world.fails(waits_for_word, execution_timeout=1), TimedOutError)


@workflow.defn
def second_time_lucky() -> int:
    attempt = workflow.info().attempt
    if attempt == 1:
        workflow.sleep(3600)
    return attempt


@scenario()
def run_timeout_is_tried_again(world: World) -> None:
    """A run that timed out is tried again, if its policy says so."""
    handle = world.start(second_time_lucky, run_timeout=1, retry_policy=QUICK)
    assert handle.result(timeout=60) == 2
    first, second = world.histories()
    assert kinds(first)[-1] == "WORKFLOW_EXECUTION_TIMED_OUT"
    assert successor(first) == second.run_id


@scenario()
def retry_policy_names_what_is_final(world: World) -> None:
    """A run is not tried again after an error of a kind that its policy names."""
    policy = RetryPolicy(initial_interval=0.02, non_retryable_error_types=["Final"])
    assert world.fails(breaks, "Final", retry_policy=policy).type == "Final"
    assert len(world.histories()) == 1


@scenario()
def a_run_without_policy_is_not_tried_again(world: World) -> None:
    """A run without a retry policy fails once."""
    assert world.fails(breaks, "Any").type == "Any"
    assert len(world.histories()) == 1


@workflow.defn
def fails_for_good() -> None:
    raise ApplicationError("no use", non_retryable=True)


@scenario()
def a_final_failure_is_not_tried_again(world: World) -> None:
    """A failure that says so ends a run in spite of its policy."""
    assert world.fails(fails_for_good, retry_policy=QUICK).non_retryable
    assert len(world.histories()) == 1


@workflow.defn
def patient_run() -> int:
    attempt = workflow.info().attempt
    if attempt < 3:
        raise ApplicationError("soon", next_retry_delay=0.03)
    return attempt


@scenario()
def a_run_names_its_next_delay(world: World) -> None:
    """A failure may name the time until the next run, which the new run's start records."""
    assert world.run(patient_run, retry_policy=RetryPolicy(initial_interval=60, maximum_attempts=3)) == 3
    delays = [
        history.events[0]["workflowExecutionStartedEventAttributes"].get("firstWorkflowTaskBackoff", "0s")
        for history in world.histories()
    ]
    assert delays == ["0s", "0.030s", "0.030s"]


@scenario()
def reuse_allowed_if_failed(world: World) -> None:
    """ALLOW_DUPLICATE_FAILED_ONLY: the id of a run that completed is refused, that of one that failed is free."""
    only_failed: dict[str, Any] = {"id_reuse_policy": IdReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY}
    good = world.start(gives, 1)
    assert good.result(timeout=60) == 1
    with pytest.raises(WorkflowAlreadyStartedError):
        world.start(gives, 2, id=good.id, **only_failed)
    bad = world.start(breaks, "Any")
    world.failure(bad)
    assert world.start(gives, 3, id=bad.id, **only_failed).result(timeout=60) == 3


@scenario()
def reuse_refused(world: World) -> None:
    """REJECT_DUPLICATE: an id is used once, however its run ended."""
    bad = world.start(breaks, "Any")
    world.failure(bad)
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        world.start(gives, 1, id=bad.id, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    assert caught.value.run_id == bad.run_id


@scenario()
def conflict_uses_the_running_one(world: World) -> None:
    """USE_EXISTING: the start of a second run is the first one's handle, and its arguments are not looked at."""
    first = world.start(waits_for_word)
    world.until(first, "WORKFLOW_TASK_COMPLETED")
    second = world.client.start_workflow(
        waits_for_word,
        id=first.id,
        task_queue=world.queue,
        id_conflict_policy=IdConflictPolicy.USE_EXISTING,
    )
    assert second.run_id == first.run_id
    second.signal("word", "one")
    assert first.result(timeout=60) == "one"


@scenario()
def conflict_ends_the_running_one(world: World) -> None:
    """TERMINATE_EXISTING: the running one is terminated, and a new one begins."""
    first = world.start(waits_for_word)
    world.until(first, "WORKFLOW_TASK_COMPLETED")
    second = world.start(gives, "new", id=first.id, id_conflict_policy=IdConflictPolicy.TERMINATE_EXISTING)
    assert second.result(timeout=60) == "new"
    assert type(world.failure(first)).__name__ == "TerminatedError"


@scenario()
def signal_with_start_to_one_that_runs(world: World) -> None:
    """A start with a signal reaches the run that is there, and starts none."""
    first = world.start(waits_for_word)
    world.until(first, "WORKFLOW_TASK_COMPLETED")
    second = world.client.start_workflow(
        waits_for_word, id=first.id, task_queue=world.queue, start_signal="word", start_signal_args=["hi"]
    )
    assert second.run_id == first.run_id
    assert first.result(timeout=60) == "hi"


@scenario()
def cancel_twice(world: World) -> None:
    """Asking a second time changes nothing: one request stands in the history."""
    world.stop_worker()
    handle = world.start(waits_for_word)
    handle.cancel("first")
    handle.cancel("second")
    world.start_worker()
    assert isinstance(world.failure(handle), CancelledError)
    found = [e for e in handle.history().events if "workflowExecutionCancelRequestedEventAttributes" in e]
    assert [e["workflowExecutionCancelRequestedEventAttributes"]["cause"] for e in found] == ["first"]


@scenario()
def cancel_of_one_that_closed(world: World) -> None:
    """A closed run may be asked to cancel: nothing happens. It cannot be terminated or signalled."""
    handle = world.start(gives, 1)
    assert handle.result(timeout=60) == 1
    handle.cancel("late")
    with pytest.raises(WorkflowNotFoundError):
        handle.terminate("late")
    with pytest.raises(WorkflowNotFoundError):
        handle.signal("word", "late")
    assert kinds(handle.history())[-1] == "WORKFLOW_EXECUTION_COMPLETED"


@scenario()
def what_describe_tells(world: World) -> None:
    """Status, times, memo, summary and length of a run that is open, and of the same one closed."""
    handle = world.start(waits_for_word, memo={"a": 1}, static_summary="in short", static_details="at length")
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    told = handle.describe()
    assert (told.status, told.close_time, told.memo) == (WorkflowStatus.RUNNING, None, {"a": 1})
    assert (told.static_summary, told.static_details) == ("in short", "at length")
    assert (told.root_id, told.parent_id) == (handle.id, "")
    handle.signal("word", "done")
    handle.result(timeout=60)
    told = handle.describe()
    assert told.status == WorkflowStatus.COMPLETED
    assert told.start_time is not None
    assert told.close_time is not None
    assert told.history_length == len(handle.history())


@workflow.defn
def chain_with_facts(left: int) -> list[Any]:
    info = workflow.info()
    if left:
        workflow.upsert_memo({"left": left})
        workflow.continue_as_new(left - 1)
    first = info.first_execution_run_id == info.run_id
    return [workflow.memo(), info.continued_run_id not in (None, "", info.run_id), first, info.attempt]


@scenario()
def a_chain_keeps_its_memo(world: World) -> None:
    """Runs of a chain carry on the memo that they were started with, and know the first run and the one before."""
    assert world.run(chain_with_facts, 2, memo={"kept": True}) == [{"kept": True}, True, False, 1]


@workflow.defn
def continues_then_waits(go_on: bool) -> str:
    if go_on:
        acts.note("first run")
        workflow.continue_as_new(False)
    workflow.sleep(3600)
    return "never"


@scenario()
def cancel_reaches_the_last_run(world: World) -> None:
    """The handle of a chain's first run cancels the run that is there now."""
    handle = world.start(continues_then_waits, True)
    latest = world.client.get_workflow_handle(handle.id)
    world.until_true(lambda: "TIMER_STARTED" in kinds(latest.history()), "a timer in the second run")
    latest.cancel("the chain")
    assert isinstance(world.failure(handle), CancelledError)
    assert kinds(world.histories()[-1])[-1] == "WORKFLOW_EXECUTION_CANCELED"
