"""Shapes of runs that other SDKs record in a way of their own: order, timers, children, updates."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from ._corpus import act
from .replaying import fits, refused
from .writer import Writer, failure, payloads

# --- order, timers, children ----------------------------------------------------------------------------------------


def test_coroutines_in_creation_order() -> None:
    """Go resumes coroutines in their order, we in that of the events: the same task, the same commands."""

    def code(names: list[str]) -> list[Any]:
        def chain(name: str) -> Any:
            return act("second", act("first", name))

        return workflow.gather(*[workflow.spawn(chain, name) for name in names])

    history = Writer("W", ["a", "b"])
    history.task()
    first = [history.activity("first", name) for name in "ab"]
    history.activity_done(first[1], "B")
    history.activity_done(first[0], "A")
    history.task()
    second = [history.activity("second", name) for name in "AB"]
    for scheduled, result in zip(second, "xy", strict=True):
        history.activity_done(scheduled, result)
    history.task()
    history.completed(["x", "y"])
    fits(history, code)


def test_timeout_timer_outlives_its_wait() -> None:
    """SDKs of the first years let the timer of a wait run on; it fires for nobody."""

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

    history = Writer("W")
    history.task()
    first = history.timer("10s")
    history.signal("come")
    history.task()
    second = history.timer("20s")
    history.fired(first)
    history.task()
    history.fired(second)
    history.task()
    history.completed("came")
    fits(history, Waits)


def test_wait_whose_condition_already_holds() -> None:
    """Where the condition held already, some SDKs started a timer, and some did not."""

    def code() -> str:
        workflow.wait_condition(lambda: True, timeout=10)
        return "held"

    for with_timer in (True, False):
        history = Writer("W")
        history.task()
        if with_timer:
            history.timer("10s")
        history.completed("held")
        fits(history, code)


def test_zero_duration_starts_no_timer() -> None:
    """Go and Java do not wait where the time is nought; others do."""

    def code() -> Any:
        workflow.sleep(0)
        return act("next")

    history = Writer("W")
    history.task()
    history.activity_done(history.activity("next"), 1)
    history.task()
    history.completed(1)
    fits(history, code)


def _with_child(child: str) -> Writer:
    history = Writer("W")
    history.task()
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
    history.task()
    history.completed("z")
    return history


def test_child_with_a_generated_id() -> None:
    """Go and Java make up ids of their own: ours, made up as well, stands for it, in signals too."""

    def code() -> Any:
        child = workflow.start_child_workflow("Child", "x")
        child.signal("go", "y")
        return child.result()

    fits(_with_child("0195ed07-8876-7eb9-b722-ef99fadefce6_5"), code)


def test_child_with_a_chosen_id() -> None:
    """An id that the code chose must be the recorded one."""

    def code() -> Any:
        child = workflow.start_child_workflow("Child", "x", id="chosen")
        child.signal("go", "y")
        return child.result()

    fits(_with_child("chosen"), code)
    assert "chosen" in refused(_with_child("another"), code).produced


def test_retried_run_recorded_as_continued() -> None:
    """Servers of the first years ended such a run as continued."""

    def code() -> None:
        act("breaks")

    history = Writer("W")
    history.task()
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
    fits(history, code)


def test_update_whose_handler_the_body_registers() -> None:
    """As in Go, an update that came before its handler waits for it."""

    def code() -> int:
        got: list[int] = []

        @workflow.update
        def add(number: int) -> int:
            got.append(number)
            return number

        workflow.wait_condition(lambda: bool(got))
        return got[0]

    history = Writer("W")
    history.task()
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
    fits(history, code)
