"""Commands in the workflow task that closes the run: which are sent and which are not."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import (
    ApplicationError,
    TerminatedError,
    UpdateFailedError,
    WorkflowAlreadyStartedError,
)
from hourglass.workflow import Channel, ChildCancellationType, ParentClosePolicy

from . import activities
from .scenario import scenario, scenarios
from .world import LIMIT, World, event_types

ENDS = Channel("end", str)
WORDS = Channel("words", str)


@workflow.defn
def waits_for_end_signal(word: str = "") -> str:
    return f"{word}{ENDS.receive()}"


@workflow.defn
def collects_words_until_end() -> list[str]:
    words: list[str] = []
    while not words or words[-1] != "end":
        words.append(WORDS.receive())
    return words


@workflow.defn
def returns_immediately(word: str = "ended") -> str:
    return word


@workflow.defn
def runs_child() -> str:
    return returns_immediately()


def child_id() -> str:
    return f"{workflow.info().workflow_id}/child"


# --- all at once, and the end ------------------------------------------------------------------------------------------


@workflow.defn
def issues_every_command_and_closes(way: str, receiver_id: str) -> str:
    """Issues a command of each kind and closes the run in the same workflow task."""
    if way == "second":
        return "second"
    receiver = workflow.get_external_workflow_handle(receiver_id)
    child = waits_for_end_signal.options(id=child_id(), parent_close_policy=ParentClosePolicy.ABANDON)
    late: list[Any] = [
        workflow.spawn(activities.record_call, "late"),
        workflow.spawn(workflow.sleep, 60),
        workflow.spawn(child, "late"),
        workflow.spawn(receiver.signal, "words", "late"),
        workflow.spawn(receiver.cancel),
    ]
    workflow.upsert_memo({"said": "all"})
    workflow.patched("spoken")
    workflow.sleep(0)
    if way == "fail":
        raise ApplicationError("all said", type="Said", non_retryable=True)
    if way == "continue":
        workflow.continue_as_new("second", receiver_id)
    return f"{len(late)} things"


def close_with_commands(world: World, way: str) -> WorkflowHandle[Any]:
    """Run the workflow; check that the other workflow received nothing and that no activity ran."""
    receiver = world.start_waiting(collects_words_until_end)
    run = world.start(issues_every_command_and_closes, way, receiver.id)
    if way == "fail":
        assert world.failure(run).message == "all said"
    else:
        assert run.result(timeout=LIMIT) == ("second" if way == "continue" else "5 things")
    assert (
        world.run(runs_child) == "ended"
    )  # started later and complete, so the earlier commands were not sent
    receiver.signal("words", "end")
    assert receiver.result(timeout=LIMIT) == ["end"]
    assert activities.state.calls == []
    return run


@scenario()
def commands_of_completing_task_have_no_effect_but_memo(world: World) -> None:
    assert close_with_commands(world, "complete").describe().memo == {"said": "all"}


@scenario()
def commands_of_failing_task_have_no_effect_but_memo(world: World) -> None:
    assert close_with_commands(world, "fail").describe().memo == {"said": "all"}


@scenario()
def commands_of_continuing_task_have_no_effect_on_next_run(world: World) -> None:
    run = close_with_commands(world, "continue")
    assert world.client.get_workflow_handle(run.id).describe().memo == {}


# --- to a child that has started --------------------------------------------------------------------------------------


@workflow.defn
def signals_or_cancels_child_and_closes(policy: int, what: str) -> str:
    child = collects_words_until_end.options(
        id=child_id(),
        parent_close_policy=ParentClosePolicy(policy),
        cancellation_type=ChildCancellationType.TRY_CANCEL,
    ).start()
    WORDS.receive()
    if what == "signal":
        workflow.spawn(child.signal, "words", "farewell")
    else:
        child.cancel()
    workflow.sleep(0)
    return child.id


def close_with_request_to_child(world: World, policy: ParentClosePolicy, what: str) -> WorkflowHandle[Any]:
    parent = world.start(signals_or_cancels_child_and_closes, int(policy), what)
    world.wait_for_event(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    parent.signal("words", "go")
    child = world.client.get_workflow_handle(parent.result(timeout=LIMIT))
    assert world.run(runs_child) == "ended"
    return child


@scenario("loose")
def signal_to_child_in_closing_task_is_not_sent(world: World) -> None:
    child = close_with_request_to_child(world, ParentClosePolicy.ABANDON, "signal")
    child.signal("words", "end")
    assert child.result(timeout=LIMIT) == ["end"]


@scenario("loose")
def cancellation_of_child_in_closing_task_is_not_sent(world: World) -> None:
    child = close_with_request_to_child(world, ParentClosePolicy.ABANDON, "cancel")
    assert "WORKFLOW_EXECUTION_CANCEL_REQUESTED" not in event_types(child.history())
    child.signal("words", "end")
    assert child.result(timeout=LIMIT) == ["end"]


@scenario("loose")
def child_is_cancelled_once_by_closing_task_and_close_policy(world: World) -> None:
    child = close_with_request_to_child(world, ParentClosePolicy.REQUEST_CANCEL, "cancel")
    world.failure(child)
    assert event_types(child.history()).count("WORKFLOW_EXECUTION_CANCEL_REQUESTED") == 1


@scenario("loose")
def terminated_child_gets_no_signal_of_closing_task(world: World) -> None:
    child = close_with_request_to_child(world, ParentClosePolicy.TERMINATE, "signal")
    world.failure(child)
    assert "WORKFLOW_EXECUTION_SIGNALED" not in event_types(child.history())


# --- what is pending ----------------------------------------------------------------------------------------------------


@workflow.defn
def closes_with_open_work(way: str) -> str:
    """Closes while an activity, a timer and a child are open."""
    if way == "second":
        return "second"
    child = waits_for_end_signal.options(id=child_id()).start()
    work = activities.stops_when_cancelled.options(heartbeat_timeout=5).start("left")
    timer = workflow.spawn(workflow.sleep, 60)
    WORDS.receive()
    if way == "cancel":  # in the task that closes the run
        timer.cancel()
        work.cancel()
        child.cancel()
        workflow.sleep(0)
        workflow.sleep(0)
    if way == "fail":
        raise ApplicationError("left", type="Left")
    if way == "continue":
        workflow.continue_as_new("second")
    return "left"


def close_with_open_work(
    world: World, way: str, **options: Any
) -> tuple[WorkflowHandle[Any], WorkflowHandle[Any]]:
    run = world.start(closes_with_open_work, way, **options)
    world.wait_for_event(run, "CHILD_WORKFLOW_EXECUTION_STARTED")
    activities.wait_for_gate("left")
    run.signal("words", "go")
    return run, world.client.get_workflow_handle(f"{run.id}/child")


@scenario("loose")
def failed_run_terminates_child_and_abandons_other_work(world: World) -> None:
    run, child = close_with_open_work(world, "fail", retry_policy=RetryPolicy(maximum_attempts=1))
    assert world.failure(run).type == "Left"
    assert isinstance(world.failure(child), TerminatedError)


@scenarios(
    "loose",
    completed_run_terminates_child_and_abandons_other_work=("complete", "left"),
    continued_run_terminates_child_and_abandons_other_work=("continue", "second"),
    run_cancels_open_work_in_closing_task=("cancel", "left"),
)
def result_after_closing_with_open_work(world: World, way: str) -> Any:
    run, child = close_with_open_work(world, way)
    result = run.result(timeout=LIMIT)
    assert isinstance(world.failure(child), TerminatedError)
    return result


# --- two of one name ----------------------------------------------------------------------------------------------------


def start_child_or_report_conflict(name: str) -> str:
    try:
        return waits_for_end_signal.options(id=name)()
    except WorkflowAlreadyStartedError:
        return "taken"


@workflow.defn
def starts_two_children_with_one_id() -> list[str]:
    return sorted(
        workflow.gather(*[workflow.spawn(start_child_or_report_conflict, child_id()) for _ in range(2)])
    )


@scenario("loose")
def second_child_with_same_id_in_one_task_is_rejected(world: World) -> None:
    parent = world.start(starts_two_children_with_one_id)
    world.wait_for_event(parent, "START_CHILD_WORKFLOW_EXECUTION_FAILED")
    world.client.get_workflow_handle(f"{parent.id}/child").signal("end", "done")
    assert parent.result(timeout=LIMIT) == ["done", "taken"]


@workflow.defn
def signals_twice_and_cancels(name: str) -> str:
    external = workflow.get_external_workflow_handle(name)
    workflow.gather(
        workflow.spawn(external.signal, "words", "one"),
        workflow.spawn(external.signal, "words", "two"),
        workflow.spawn(external.cancel),
    )
    return "said"


@workflow.defn
def waits_for_cancellation_and_two_signals() -> None:
    """Expects the signals after the cancellation as well: a server may deliver the cancellation first."""
    try:
        workflow.wait_condition(lambda: False)
    finally:
        with workflow.shield():
            WORDS.receive()
            WORDS.receive()


@scenario("loose")
def two_signals_and_cancellation_of_one_task_are_delivered(world: World) -> None:
    receiver = world.start_waiting(waits_for_cancellation_and_two_signals)
    assert world.run(signals_twice_and_cancels, receiver.id) == "said"
    world.failure(receiver)
    types = event_types(receiver.history())
    assert types.count("WORKFLOW_EXECUTION_SIGNALED") == 2
    assert types.count("WORKFLOW_EXECUTION_CANCEL_REQUESTED") == 1


# --- updates ------------------------------------------------------------------------------------------------------------


@workflow.defn
class ClosesOnUpdate:
    """Closes when it has received an update; the update may still be running."""

    def __init__(self) -> None:
        self.asked = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.asked)
        return "closed"

    @workflow.update
    def ask(self, work: str) -> str:
        self.asked = True
        if work:
            activities.record_call(work)
        return "answered"


@scenario("loose")
def unfinished_update_fails_when_run_closes(world: World) -> None:
    """The activity that the update's handler started never runs."""
    handle = world.start_waiting(ClosesOnUpdate)
    with pytest.raises(UpdateFailedError):
        handle.execute_update("ask", "work")
    assert handle.result(timeout=LIMIT) == "closed"
    assert world.run(runs_child) == "ended"
    assert activities.state.calls == []
