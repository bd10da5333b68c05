"""Histories that other SDKs record in their own way: order, timers, children, updates."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from ._corpus import act
from .replaying import assert_fits, assert_rejected
from .writer import Writer, failure, payloads

# --- order, timers, children ----------------------------------------------------------------------------------------


def test_go_coroutines_may_resume_in_creation_order() -> None:
    def code(names: list[str]) -> list[Any]:
        def chain(name: str) -> Any:
            return act("second", act("first", name))

        return workflow.gather(*[workflow.spawn(chain, name) for name in names])

    history = Writer.in_task("W", ["a", "b"])
    first = [history.activity("first", name) for name in "ab"]
    history.activity_done(first[1], "B")
    history.activity_done(first[0], "A")
    history.task()
    second = [history.activity("second", name) for name in "AB"]
    for scheduled, result in zip(second, "xy", strict=True):
        history.activity_done(scheduled, result)
    history.task_completes_run(["x", "y"])
    assert_fits(history, code)


def test_timer_of_a_finished_wait_may_fire_later() -> None:
    class Waits:
        def __init__(self) -> None:
            self.there = False

        @workflow.run
        def run(self) -> str:
            workflow.wait_condition(lambda: self.there, timeout=10)
            workflow.sleep(20)
            return "came"

        @workflow.signal
        def come(self) -> None:
            self.there = True

    history = Writer.in_task("W")
    first = history.timer("10s")
    history.signal("come")
    history.task()
    second = history.timer("20s")
    history.fired(first)
    history.task()
    history.fired(second)
    history.task_completes_run("came")
    assert_fits(history, Waits)


def test_wait_condition_that_already_holds_matches_with_or_without_timer() -> None:
    def code() -> str:
        workflow.wait_condition(lambda: True, timeout=10)
        return "held"

    for with_timer in (True, False):
        history = Writer.in_task("W")
        if with_timer:
            history.timer("10s")
        history.completed("held")
        assert_fits(history, code)


def test_zero_sleep_starts_no_timer_in_go_histories() -> None:
    def code() -> Any:
        workflow.sleep(0)
        return act("next")

    history = Writer.in_task("W")
    history.activity_done(history.activity("next"), 1)
    history.task_completes_run(1)
    assert_fits(history, code)


def _with_child(child: str) -> Writer:
    history = Writer.in_task("W")
    initiated = history.asked(
        "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
        workflowId=child,
        workflowType={"name": "Child"},
        input=payloads("x"),
    )
    execution = {"workflowId": child, "runId": "r"}
    started = history.add(
        "CHILD_WORKFLOW_EXECUTION_STARTED",
        initiatedEventId=str(initiated),
        workflowExecution=execution,
        workflowType={"name": "Child"},
    )
    history.task()
    signal = history.asked(
        "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED",
        workflowExecution={"workflowId": child},
        signalName="go",
        input=payloads("y"),
        childWorkflowOnly=True,
    )
    history.add(
        "EXTERNAL_WORKFLOW_EXECUTION_SIGNALED",
        initiatedEventId=str(signal),
        workflowExecution={"workflowId": child},
    )
    history.task()
    history.add(
        "CHILD_WORKFLOW_EXECUTION_COMPLETED",
        initiatedEventId=str(initiated),
        startedEventId=str(started),
        workflowExecution=execution,
        workflowType={"name": "Child"},
        result=payloads("z"),
    )
    history.task_completes_run("z")
    return history


def test_generated_child_id_matches_any_recorded_id() -> None:
    def code() -> Any:
        child = workflow.start_child_workflow("Child", "x")
        child.signal("go", "y")
        return child.result()

    assert_fits(_with_child("0195ed07-8876-7eb9-b722-ef99fadefce6_5"), code)


def test_chosen_child_id_must_match_recorded_id() -> None:
    def code() -> Any:
        child = workflow.start_child_workflow("Child", "x", id="chosen")
        child.signal("go", "y")
        return child.result()

    assert_fits(_with_child("chosen"), code)
    assert "chosen" in assert_rejected(_with_child("another"), code).produced


def test_retry_recorded_as_continue_as_new_replays() -> None:
    def code() -> None:
        act("breaks")

    history = Writer.in_task("W")
    scheduled = history.activity("breaks")
    started = history.add("ACTIVITY_TASK_STARTED", scheduledEventId=str(scheduled))
    history.add(
        "ACTIVITY_TASK_FAILED",
        scheduledEventId=str(scheduled),
        startedEventId=str(started),
        failure=failure("broken"),
        retryState="RETRY_STATE_NON_RETRYABLE_FAILURE",
    )
    history.task()
    history.asked(
        "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        newExecutionRunId="r",
        workflowType={"name": "W"},
        initiator="CONTINUE_AS_NEW_INITIATOR_RETRY",
        failure=failure("broken"),
    )
    assert_fits(history, code)


def test_update_waits_for_handler_registered_by_the_body() -> None:
    def code() -> int:
        got: list[int] = []

        @workflow.update
        def add(number: int) -> int:
            got.append(number)
            return number

        workflow.wait_condition(lambda: bool(got))
        return got[0]

    history = Writer.in_task("W")
    request = {"meta": {"updateId": "u"}, "input": {"name": "add", "args": payloads(5)}}
    accepted = history.add(
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED", protocolInstanceId="u", acceptedRequest=request
    )
    history.add(
        "WORKFLOW_EXECUTION_UPDATE_COMPLETED",
        meta={"updateId": "u"},
        acceptedEventId=str(accepted),
        outcome={"success": payloads(5)},
    )
    history.completed(5)
    assert_fits(history, code)
