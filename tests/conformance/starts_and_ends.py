"""Starts and ends of runs: ids, delays, timeouts, retries, chains, and how a client describes them."""

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

from . import activities
from .scenario import scenario
from .world import World, attributes_of, event_types, successor_run_id

QUICK = RetryPolicy(initial_interval=0.02, maximum_attempts=3)


@workflow.defn
def waits_for_word_signal() -> str:
    return str(workflow.Channel("word", str).receive())


@workflow.defn
def returns_argument(value: Any) -> Any:
    return value


@workflow.defn
def fails_with_type(kind: str) -> None:
    raise ApplicationError("broken", type=kind)


@scenario()
def start_delay_is_recorded_and_postpones_first_task(world: World) -> None:
    handle = world.start(returns_argument, 1, start_delay=0.2)
    assert event_types(handle.history()) == ["WORKFLOW_EXECUTION_STARTED"]
    assert handle.result(timeout=60) == 1
    started = handle.history().events[0]["workflowExecutionStartedEventAttributes"]
    assert started["firstWorkflowTaskBackoff"] == "0.200s"


@scenario()
def run_can_be_terminated_during_start_delay(world: World) -> None:
    handle = world.start(returns_argument, 1, start_delay=3600)
    handle.terminate("never mind")
    assert "never mind" in str(world.failure(handle))
    assert event_types(handle.history()) == ["WORKFLOW_EXECUTION_STARTED", "WORKFLOW_EXECUTION_TERMINATED"]


@scenario()
def execution_timeout_ends_run(world: World) -> None:
    assert isinstance(world.run_failing(waits_for_word_signal, execution_timeout=1), TimedOutError)


@workflow.defn
def hangs_on_first_attempt() -> int:
    attempt = workflow.info().attempt
    if attempt == 1:
        workflow.sleep(3600)
    return attempt


@scenario()
def run_retries_after_run_timeout(world: World) -> None:
    handle = world.start(hangs_on_first_attempt, run_timeout=1, retry_policy=QUICK)
    assert handle.result(timeout=60) == 2
    first, second = world.histories()
    assert event_types(first)[-1] == "WORKFLOW_EXECUTION_TIMED_OUT"
    assert successor_run_id(first) == second.run_id


@scenario()
def run_is_not_retried_after_non_retryable_error_type(world: World) -> None:
    policy = RetryPolicy(initial_interval=0.02, non_retryable_error_types=["Final"])
    assert world.run_failing(fails_with_type, "Final", retry_policy=policy).type == "Final"
    assert len(world.histories()) == 1


@scenario()
def run_without_retry_policy_fails_once(world: World) -> None:
    assert world.run_failing(fails_with_type, "Any").type == "Any"
    assert len(world.histories()) == 1


@workflow.defn
def fails_non_retryable() -> None:
    raise ApplicationError("no use", non_retryable=True)


@scenario()
def non_retryable_failure_ends_run_despite_retry_policy(world: World) -> None:
    assert world.run_failing(fails_non_retryable, retry_policy=QUICK).non_retryable
    assert len(world.histories()) == 1


@workflow.defn
def fails_twice_with_next_retry_delay() -> int:
    attempt = workflow.info().attempt
    if attempt < 3:
        raise ApplicationError("soon", next_retry_delay=0.03)
    return attempt


@scenario()
def run_retry_uses_next_retry_delay_of_failure(world: World) -> None:
    assert (
        world.run(
            fails_twice_with_next_retry_delay,
            retry_policy=RetryPolicy(initial_interval=60, maximum_attempts=3),
        )
        == 3
    )
    delays = [
        history.events[0]["workflowExecutionStartedEventAttributes"].get("firstWorkflowTaskBackoff", "0s")
        for history in world.histories()
    ]
    assert delays == ["0s", "0.030s", "0.030s"]


@scenario()
def allow_duplicate_failed_only_rejects_id_of_completed_run(world: World) -> None:
    only_failed: dict[str, Any] = {"id_reuse_policy": IdReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY}
    good = world.start(returns_argument, 1)
    assert good.result(timeout=60) == 1
    with pytest.raises(WorkflowAlreadyStartedError):
        world.start(returns_argument, 2, id=good.id, **only_failed)
    bad = world.start(fails_with_type, "Any")
    world.failure(bad)
    assert world.start(returns_argument, 3, id=bad.id, **only_failed).result(timeout=60) == 3


@scenario()
def reject_duplicate_rejects_id_of_failed_run(world: World) -> None:
    bad = world.start(fails_with_type, "Any")
    world.failure(bad)
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        world.start(returns_argument, 1, id=bad.id, id_reuse_policy=IdReusePolicy.REJECT_DUPLICATE)
    assert caught.value.run_id == bad.run_id


@scenario()
def running_id_is_refused_unless_existing_run_is_used(world: World) -> None:
    first = world.start_waiting(waits_for_word_signal)
    options: dict[str, Any] = {"id": first.id, "task_queue": world.queue}
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        world.client.start_workflow(waits_for_word_signal, **options)
    assert (caught.value.workflow_id, caught.value.run_id) == (first.id, first.run_id)
    options["id_conflict_policy"] = IdConflictPolicy.USE_EXISTING
    second: Any = world.client.start_workflow(waits_for_word_signal, **options)
    assert second.run_id == first.run_id
    second.signal("word", "one")
    assert first.result(timeout=60) == "one"


@scenario()
def terminate_existing_terminates_running_run(world: World) -> None:
    first = world.start_waiting(waits_for_word_signal)
    second = world.start(
        returns_argument, "new", id=first.id, id_conflict_policy=IdConflictPolicy.TERMINATE_EXISTING
    )
    assert second.result(timeout=60) == "new"
    assert type(world.failure(first)).__name__ == "TerminatedError"


@scenario()
def signal_with_start_signals_running_run(world: World) -> None:
    first = world.start_waiting(waits_for_word_signal)
    second = world.client.start_workflow(
        waits_for_word_signal,
        id=first.id,
        task_queue=world.queue,
        start_signal="word",
        start_signal_args=["hi"],
    )
    assert second.run_id == first.run_id
    assert first.result(timeout=60) == "hi"


@scenario()
def second_cancel_request_is_ignored(world: World) -> None:
    world.stop_worker()
    handle = world.start(waits_for_word_signal)
    handle.cancel("first")
    handle.cancel("second")
    world.start_worker()
    assert isinstance(world.failure(handle), CancelledError)
    requests = attributes_of(handle.history(), "WORKFLOW_EXECUTION_CANCEL_REQUESTED")
    assert [request["cause"] for request in requests] == ["first"]


@scenario()
def cancel_of_closed_run_does_nothing_but_terminate_and_signal_fail(world: World) -> None:
    handle = world.start(returns_argument, 1)
    assert handle.result(timeout=60) == 1
    handle.cancel("late")
    with pytest.raises(WorkflowNotFoundError):
        handle.terminate("late")
    with pytest.raises(WorkflowNotFoundError):
        handle.signal("word", "late")
    assert event_types(handle.history())[-1] == "WORKFLOW_EXECUTION_COMPLETED"


@scenario()
def describe_shows_status_times_memo_summary_and_length(world: World) -> None:
    handle = world.start_waiting(
        waits_for_word_signal, memo={"a": 1}, static_summary="in short", static_details="at length"
    )
    description = handle.describe()
    assert (description.status, description.close_time, description.memo) == (
        WorkflowStatus.RUNNING,
        None,
        {"a": 1},
    )
    assert (description.static_summary, description.static_details) == ("in short", "at length")
    assert (description.root_id, description.parent_id) == (handle.id, "")
    handle.signal("word", "done")
    handle.result(timeout=60)
    description = handle.describe()
    assert description.status == WorkflowStatus.COMPLETED
    assert description.start_time is not None
    assert description.close_time is not None
    assert description.history_length == len(handle.history())


@workflow.defn
def returns_memo_and_ids_of_chain(left: int) -> list[Any]:
    info = workflow.info()
    if left:
        workflow.upsert_memo({"left": left})
        workflow.continue_as_new(left - 1)
    first = info.first_execution_run_id == info.run_id
    return [workflow.memo(), info.continued_run_id not in (None, "", info.run_id), first, info.attempt]


@scenario()
def continued_run_keeps_start_memo_and_knows_previous_run(world: World) -> None:
    assert world.run(returns_memo_and_ids_of_chain, 2, memo={"kept": True}) == [
        {"kept": True},
        True,
        False,
        1,
    ]


@workflow.defn
def continues_then_sleeps(go_on: bool) -> str:
    if go_on:
        activities.record_call("first run")
        workflow.continue_as_new(False)
    workflow.sleep(3600)
    return "never"


@scenario()
def cancel_by_first_handle_reaches_latest_run(world: World) -> None:
    handle = world.start(continues_then_sleeps, True)
    latest = world.client.get_workflow_handle(handle.id)
    world.wait_until(lambda: "TIMER_STARTED" in event_types(latest.history()), "a timer in the second run")
    latest.cancel("the chain")
    assert isinstance(world.failure(handle), CancelledError)
    assert event_types(world.histories()[-1])[-1] == "WORKFLOW_EXECUTION_CANCELED"
