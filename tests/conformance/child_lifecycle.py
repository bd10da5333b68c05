"""Children: retries, timeouts, ids, queues, close policies; parents that close, continue or are terminated."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from hourglass import RetryPolicy, Worker, workflow
from hourglass.client import IdReusePolicy
from hourglass.errors import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
    WorkflowFailedError,
)
from hourglass.workflow import Channel, ChildCancellationType, ParentClosePolicy

from . import activities
from .scenario import returns, scenario, scenarios
from .world import World, event_types, exists

ENDS = Channel("end", str)


@workflow.defn
def squares(number: int) -> int:
    return number * number


@workflow.defn
def waits_for_end_signal(word: str = "") -> str:
    return f"{word}{ENDS.receive()}"


@workflow.defn
def fails_with_text(text: str) -> None:
    raise ApplicationError(text, 1, type="Broke")


def failure_chain(error: BaseException | None) -> str:
    """Return the types and messages of a chain of failures as one line."""
    names: list[str] = []
    while error is not None:
        names.append(f"{type(error).__name__}({getattr(error, 'message', error)})")
        error = error.__cause__
    return " <- ".join(names)


# --- trouble ----------------------------------------------------------------------------------------------------------


@workflow.defn
def succeeds_on_attempt(attempt: int) -> int:
    now = workflow.info().attempt
    if now < attempt:
        raise ApplicationError(f"attempt {now}", type="NotYet")
    return now


@workflow.defn
def retries_child(attempts: int) -> str:
    policy = RetryPolicy(initial_interval=0.05, backoff_coefficient=1.0, maximum_attempts=attempts)
    try:
        return str(succeeds_on_attempt.options(retry_policy=policy)(3))
    except ChildWorkflowError as error:
        return f"{int(error.retry_state or 0)} {failure_chain(error)}"


@scenario("loose")
def parent_gets_result_of_last_run_of_retried_child(world: World) -> None:
    assert world.run(retries_child, 5) == "3"


@scenario("loose")
def parent_gets_last_failure_when_attempts_of_child_are_used_up(world: World) -> None:
    result = world.run(retries_child, 2)
    assert result.startswith("4 ")
    assert "ApplicationError(attempt 2)" in result


@workflow.defn
def runs_child_with_timeout(for_execution: bool) -> str:
    limit = timedelta(seconds=1)
    child = (
        waits_for_end_signal.options(execution_timeout=limit)
        if for_execution
        else waits_for_end_signal.options(run_timeout=limit)
    )
    try:
        return child("never")
    except ChildWorkflowError as error:
        return failure_chain(error)


@scenario("loose")
def run_timeout_of_child_raises_in_parent(world: World) -> None:
    assert "Child Workflow execution timed out" in world.run(runs_child_with_timeout, False)


@scenario("loose")
def execution_timeout_of_child_raises_in_parent(world: World) -> None:
    assert "Child Workflow execution timed out" in world.run(runs_child_with_timeout, True)


@workflow.defn
def waits_for_child() -> str:
    try:
        return waits_for_end_signal.options(id=f"{workflow.info().workflow_id}/child")("went ")
    except ChildWorkflowError as error:
        return failure_chain(error)


def start_with_child(world: World, parent: Any, *args: Any) -> tuple[Any, Any]:
    """Start a parent and wait until its child has started. Return both handles."""
    handle = world.start(parent, *args)
    world.wait_for_event(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    child = world.client.get_workflow_handle(f"{handle.id}/child")
    world.handles.append(child)
    return handle, child


@scenario("loose")
def terminated_child_raises_in_parent(world: World) -> None:
    parent, child = start_with_child(world, waits_for_child)
    child.terminate("enough")
    assert "TerminatedError(Terminated)" in parent.result(timeout=60)
    assert isinstance(world.failure(child), TerminatedError)


@scenario("loose")
def child_cancelled_by_client_raises_in_parent(world: World) -> None:
    parent, child = start_with_child(world, waits_for_child)
    child.cancel()
    assert "CancelledError" in parent.result(timeout=60)


@scenario("loose")
def client_can_signal_child(world: World) -> None:
    parent, child = start_with_child(world, waits_for_child)
    child.signal("end", "well")
    assert parent.result(timeout=60) == "went well"


@workflow.defn
def fails_through_children(depth: int) -> None:
    fails_through_children(depth - 1) if depth else fails_with_text("deep down")


@scenario("loose")
def uncaught_failure_passes_through_two_levels_of_children(world: World) -> None:
    error = world.run_failing(fails_through_children, 1)
    assert isinstance(error, ChildWorkflowError)
    assert failure_chain(error).count("ChildWorkflowError") == 2
    assert failure_chain(error).endswith("ApplicationError(deep down)")


@workflow.defn
def starts_and_cancels_child_in_one_task() -> str:
    task = workflow.spawn(lambda: waits_for_end_signal.start("never"))
    workflow.sleep(0)
    task.cancel()
    try:
        task.result()
    except (ChildWorkflowError, CancelledError) as error:
        return failure_chain(error)
    return "never"


@scenario("loose")
def child_cancelled_in_the_same_task_is_never_started(world: World) -> None:
    assert "Cancelled" in world.run(starts_and_cancels_child_in_one_task)
    assert not [kind for kind in event_types(world.handles[0].history()) if "CHILD" in kind]


@workflow.defn
def cancels_abandoned_child() -> str:
    child = waits_for_end_signal.options(
        id=f"{workflow.info().workflow_id}/child",
        cancellation_type=ChildCancellationType.ABANDON,
        parent_close_policy=ParentClosePolicy.ABANDON,
    ).start("goes on ")
    child.cancel()
    try:
        return child.result()
    except ChildWorkflowError as error:
        return failure_chain(error)


@scenario("loose")
def cancellation_type_abandon_resolves_immediately_and_leaves_child_running(world: World) -> None:
    parent, child = start_with_child(world, cancels_abandoned_child)
    assert "CancelledError" in parent.result(timeout=60)
    child.signal("end", "and on")
    assert child.result(timeout=60) == "goes on and on"


@workflow.defn
def continues_then_waits(times: int) -> str:
    if times:
        workflow.continue_as_new(times - 1)
    return waits_for_end_signal.fn("at last ")


@workflow.defn
def runs_continuing_child() -> str:
    try:
        return continues_then_waits.options(id=f"{workflow.info().workflow_id}/child")(1)
    except ChildWorkflowError as error:
        return failure_chain(error)


@scenario("loose")
def termination_of_continued_child_raises_in_parent(world: World) -> None:
    parent, child = start_with_child(world, runs_continuing_child)
    first = child.describe().first_execution_run_id
    world.wait_until(lambda: child.describe().run_id != first, "second run")
    child.terminate("enough")
    assert "TerminatedError" in parent.result(timeout=60)


# --- parents ----------------------------------------------------------------------------------------------------------


@workflow.defn
def continues_with_open_child(policy: int, again: bool = True) -> str:
    if again:
        name = f"{workflow.info().workflow_id}/child"
        waits_for_end_signal.options(id=name, parent_close_policy=ParentClosePolicy(policy)).start("left ")
        workflow.continue_as_new(policy, False)
    return "done"


@scenarios(
    "loose",
    continue_as_new_of_parent_terminates_child_by_policy=(ParentClosePolicy.TERMINATE, "TerminatedError"),
    continue_as_new_of_parent_cancels_child_by_policy=(ParentClosePolicy.REQUEST_CANCEL, "CancelledError"),
    continue_as_new_of_parent_leaves_abandoned_child_running=(ParentClosePolicy.ABANDON, "left alone"),
)
def outcome_of_child_after_parent_continued(world: World, policy: ParentClosePolicy) -> str:
    parent = world.start(continues_with_open_child, int(policy))
    assert parent.result(timeout=60) == "done"
    child = world.client.get_workflow_handle(f"{parent.id}/child")
    world.handles.append(child)
    if policy is ParentClosePolicy.ABANDON:
        child.signal("end", "alone")
    try:
        return str(child.result(timeout=60))
    except WorkflowFailedError as error:
        return type(error.cause).__name__


@scenario("loose")
def termination_of_parent_terminates_child(world: World) -> None:
    parent, child = start_with_child(world, waits_for_child)
    parent.terminate("enough")
    assert isinstance(world.failure(child), TerminatedError)


@workflow.defn
def closes_while_starting_child(policy: int) -> str:
    name = f"{workflow.info().workflow_id}/child"
    start = waits_for_end_signal.options(id=name, parent_close_policy=ParentClosePolicy(policy)).start
    workflow.spawn(lambda: start("late "))
    workflow.sleep(0)
    return name


@scenario("loose")
def child_started_in_closing_task_of_parent_never_runs(world: World) -> None:
    names = [world.run(closes_while_starting_child, int(policy)) for policy in list(ParentClosePolicy)[1:]]
    world.run(runs_many_children, 2)  # started later and complete, so the earlier children were not started
    assert not any(exists(world.client.get_workflow_handle(name)) for name in names)


# --- ids, queues, notes -----------------------------------------------------------------------------------------------


@workflow.defn
def reuses_child_id(policy: int, fail: bool) -> str:
    name = f"{workflow.info().workflow_id}/child"
    try:
        fails_with_text.options(id=name)("first") if fail else squares.options(id=name)(1)
    except ChildWorkflowError:
        pass
    try:
        return str(squares.options(id=name, id_reuse_policy=IdReusePolicy(policy))(2))
    except WorkflowAlreadyStartedError as error:
        return f"taken {error.workflow_id == name}"


@scenario("loose")
def id_reuse_policy_applies_to_ids_of_closed_children(world: World) -> None:
    results = {
        (policy.name, fail): world.run(reuses_child_id, int(policy), fail)
        for policy in list(IdReusePolicy)[1:]
        for fail in (False, True)
    }
    assert results == {
        ("ALLOW_DUPLICATE", False): "4",
        ("ALLOW_DUPLICATE", True): "4",
        ("ALLOW_DUPLICATE_FAILED_ONLY", False): "taken True",
        ("ALLOW_DUPLICATE_FAILED_ONLY", True): "4",
        ("REJECT_DUPLICATE", False): "taken True",
        ("REJECT_DUPLICATE", True): "taken True",
        ("TERMINATE_IF_RUNNING", False): "4",
        ("TERMINATE_IF_RUNNING", True): "4",
    }


@workflow.defn
def starts_child_with_terminate_if_running() -> list[str]:
    name = f"{workflow.info().workflow_id}/child"
    first = waits_for_end_signal.options(id=name).start("never")
    second = squares.options(id=name, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)(3)
    try:
        return [first.result()]
    except ChildWorkflowError as error:
        return [str(second), failure_chain(error)]


@scenario("loose")
def terminate_if_running_replaces_child_with_same_id(world: World) -> None:
    second, first = world.run(starts_child_with_terminate_if_running)
    assert second == "9"
    assert "TerminatedError" in first


@returns("taken", order="loose")
@workflow.defn
def child_with_id_of_parent_is_rejected() -> str:
    try:
        squares.options(id=workflow.info().workflow_id)(1)
    except WorkflowAlreadyStartedError:
        return "taken"
    return "never"


@workflow.defn
def returns_task_queue() -> str:
    return workflow.info().task_queue


@workflow.defn
def runs_child_on_another_queue(queue: str) -> list[str]:
    return [returns_task_queue(), returns_task_queue.options(task_queue=queue)()]


@scenario("loose")
def child_runs_on_queue_of_parent_unless_set(world: World) -> None:
    other_queue = f"{world.queue}-other"
    with Worker(world.client, other_queue, modules=[sys.modules[__name__], activities], verify="always"):
        assert world.run(runs_child_on_another_queue, other_queue) == [world.queue, other_queue]


@workflow.defn
def starts_child_with_memo_and_summary() -> str:
    return waits_for_end_signal.options(
        id=f"{workflow.info().workflow_id}/child",
        memo={"colour": "red"},
        search_attributes={"CustomKeywordField": "of a child"},
        static_summary="a child",
        static_details="with details",
        priority_key=2,
    )("noted ")


@scenario("loose")
def memo_attributes_and_summary_of_child_are_described(world: World) -> None:
    parent, child = start_with_child(world, starts_child_with_memo_and_summary)
    seen = child.describe()
    assert seen.memo == {"colour": "red"}
    assert seen.search_attributes["CustomKeywordField"] in ("of a child", ["of a child"])
    assert (seen.static_summary, seen.static_details) == ("a child", "with details")
    assert (seen.parent_id, seen.root_id) == (parent.id, parent.id)
    assert seen.parent_run_id == seen.root_run_id == parent.describe().run_id
    child.signal("end", "well")
    assert parent.result(timeout=60) == "noted well"


@scenario("loose")
def describe_shows_pending_children(world: World) -> None:
    parent, child = start_with_child(world, waits_for_child)
    (pending,) = parent.describe().pending_children
    assert (pending.id, pending.workflow_type) == (child.id, "waits_for_end_signal")
    assert pending.run_id == child.describe().run_id
    assert pending.parent_close_policy is ParentClosePolicy.TERMINATE
    child.signal("end", "well")
    parent.result(timeout=60)
    assert parent.describe().pending_children == ()


@workflow.defn
def runs_many_children(count: int) -> int:
    tasks = [workflow.spawn(squares, number) for number in range(count)]
    return sum(workflow.gather(*tasks))


@scenario("loose")
def forty_concurrent_children_complete(world: World) -> None:
    assert world.run(runs_many_children, 40) == sum(number * number for number in range(40))


# --- others -----------------------------------------------------------------------------------------------------------


@workflow.defn
def signals_or_cancels_workflow(name: str, run_id: str, cancel: bool) -> str:
    external = workflow.get_external_workflow_handle(name, run_id=run_id or None)
    try:
        external.cancel("enough") if cancel else external.signal("end", "by another")
    except ApplicationError as error:
        return f"{error.type}: {error}"
    return "arrived"


@scenario("loose")
def signal_to_closed_workflow_raises_not_found(world: World) -> None:
    closed = world.start(squares, 2)
    assert closed.result(timeout=60) == 4
    assert "ExternalWorkflowExecutionNotFound" in world.run(signals_or_cancels_workflow, closed.id, "", False)


@scenario("loose")
def cancellation_of_closed_workflow_succeeds(world: World) -> None:
    closed = world.start(squares, 2)
    assert closed.result(timeout=60) == 4
    assert world.run(signals_or_cancels_workflow, closed.id, "", True) == "arrived"


@scenario("loose")
def signal_with_run_id_reaches_that_run(world: World) -> None:
    waiting = world.start_waiting(waits_for_end_signal, "told ")
    assert world.run(signals_or_cancels_workflow, waiting.id, waiting.run_id, False) == "arrived"
    assert waiting.result(timeout=60) == "told by another"


@scenario("loose")
def signal_with_unknown_run_id_raises_not_found(world: World) -> None:
    waiting = world.start_waiting(waits_for_end_signal, "told ")
    unknown_run_id = "7b1f4e0a-0000-4000-8000-000000000000"
    assert "ExternalWorkflowExecutionNotFound" in world.run(
        signals_or_cancels_workflow, waiting.id, unknown_run_id, False
    )
    waiting.signal("end", "at last")
    assert waiting.result(timeout=60) == "told at last"


@workflow.defn
def signals_or_cancels_itself(cancel: bool) -> str:
    return signals_or_cancels_workflow.fn(workflow.info().workflow_id, "", cancel)


@scenario("loose")
def signal_to_own_workflow_raises_not_found(world: World) -> None:
    assert "ExternalWorkflowExecutionNotFound" in world.run(signals_or_cancels_itself, False)


@scenario("loose")
def cancellation_of_own_workflow_raises_not_found(world: World) -> None:
    assert "ExternalWorkflowExecutionNotFound" in world.run(signals_or_cancels_itself, True)


@workflow.defn
def signals_and_closes(name: str) -> str:
    external = workflow.get_external_workflow_handle(name)
    workflow.spawn(lambda: external.signal("end", "too late"))
    workflow.sleep(0)
    return "gone"


@scenario("loose")
def signal_in_closing_task_is_never_sent(world: World) -> None:
    waiting = world.start_waiting(waits_for_end_signal, "heard ")
    assert world.run(signals_and_closes, waiting.id) == "gone"
    waiting.signal("end", "this")
    assert waiting.result(timeout=60) == "heard this"
