"""Cancellation of several commands together, of commands that were never sent, and by signals."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import ActivityError, Cancelled, CancelledError, ChildWorkflowError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType

from . import activities
from .scenario import returns, scenario
from .world import LIMIT, World, event_counts, event_types


@workflow.defn
def sleeps_until_cancelled() -> None:
    workflow.sleep(1000)


@returns(
    [
        "activity cancelled",
        "child cancelled",
        "timer cancelled",
        "timer fired",
    ],
    order="loose",
)
@workflow.defn
def timer_activity_and_child_are_cancelled_together_but_shielded_timer_fires() -> list[str]:
    log: list[str] = []

    def timer() -> None:
        try:
            workflow.sleep(3)
            log.append("timer fired")
        except Cancelled:
            log.append("timer cancelled")

    def shielded() -> None:
        with workflow.shield():
            timer()

    def activity() -> None:
        try:
            activities.opens_gate_and_waits_for_go.options(
                cancellation_type=ActivityCancellationType.TRY_CANCEL
            )("begun")
        except (ActivityError, Cancelled):
            log.append("activity cancelled")

    def child() -> None:
        try:
            sleeps_until_cancelled.options(id=f"{workflow.info().workflow_id}/child")()
        except (ChildWorkflowError, Cancelled):
            log.append("child cancelled")

    tasks = [workflow.spawn(function) for function in (timer, shielded, activity, child)]
    workflow.sleep(0.1)
    for task in tasks:
        task.cancel()
    workflow.wait_condition(lambda: len(log) == 4, timeout=60)
    return sorted(log)


@workflow.defn
def cancels_commands_before_they_are_sent() -> int:
    cancelled = 0
    starts: list[Any] = [
        lambda: workflow.spawn(workflow.sleep, 500),
        lambda: activities.double.start(1),
        lambda: workflow.spawn(activities.double, 1),
        lambda: activities.double.start_local(1),
        lambda: workflow.spawn(activities.double.local, 1),
        lambda: workflow.spawn(sleeps_until_cancelled.start),
        lambda: workflow.spawn(sleeps_until_cancelled),
    ]
    for start in starts:
        task = start()
        task.cancel()
        try:
            task.result()
        except (TaskCancelledError, ActivityError, ChildWorkflowError, CancelledError):
            cancelled += 1
    workflow.sleep(0.01)
    return cancelled


@scenario()
def commands_cancelled_in_the_same_task_are_never_sent(world: World) -> None:
    handle = world.start(cancels_commands_before_they_are_sent)
    assert handle.result(timeout=LIMIT) == 7
    types = event_counts(handle.history())
    assert types["TIMER_STARTED"] == 1
    assert not [kind for kind in types if "CHILD" in kind or kind == "ACTIVITY_TASK_SCHEDULED"]


@workflow.defn
class CancelsChildOnSignal:
    def __init__(self) -> None:
        self.task: workflow.Task[None] | None = None

    @workflow.run
    def run(self, called: bool) -> None:
        child = sleeps_until_cancelled.options(id=f"{workflow.info().workflow_id}/child")
        self.task = workflow.spawn(child) if called else child.start()
        self.task.result()

    @workflow.signal
    def cancel_child(self) -> None:
        assert self.task is not None
        self.task.cancel()


def parent_with_cancelled_child(world: World, called: bool) -> Any:
    """Start a parent and cancel its child by a signal."""
    handle = world.start(CancelsChildOnSignal.run, called)
    world.wait_for_event(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    handle.signal(CancelsChildOnSignal.cancel_child)
    return handle


@scenario("loose")
def child_cancelled_by_signal_handler_fails_parent_with_cancelled_error(world: World) -> None:
    error = world.failure(parent_with_cancelled_child(world, False))
    assert isinstance(error, ChildWorkflowError)
    assert isinstance(error.cause, CancelledError)
    child = world.client.get_workflow_handle(f"{world.handles[0].id}/child")
    assert child.describe().status == WorkflowStatus.CANCELED


@workflow.defn
def cleans_up_after_cancellation() -> list[str]:
    log: list[str] = []
    try:
        workflow.wait_condition(lambda: False)
    except Cancelled:
        log.append(activities.record_call("refunded"))
        workflow.sleep(0.01)
        log.append(returns_word("told"))
    return log


@workflow.defn
def returns_word(word: str) -> str:
    return word


@scenario("loose")
def cancelled_run_can_still_use_activities_timers_and_children(world: World) -> None:
    handle = world.start_waiting(cleans_up_after_cancellation)
    handle.cancel("please")
    assert handle.result(timeout=LIMIT) == ["refunded", "told"]
    assert "CHILD_WORKFLOW_EXECUTION_COMPLETED" in event_types(handle.history())


@workflow.defn
def returns_cancel_reason() -> list[Any]:
    before = workflow.info().cancel_requested
    try:
        workflow.sleep(1000)
    except Cancelled:
        return [before, workflow.info().cancel_requested, workflow.info().cancel_reason]
    return []


@scenario()
def cancel_reason_reaches_workflow(world: World) -> None:
    handle = world.start(returns_cancel_reason)
    world.wait_for_event(handle, "TIMER_STARTED")
    handle.cancel("because I say so")
    assert handle.result(timeout=LIMIT) == [False, True, "because I say so"]


@workflow.defn
def waits_for_signal_or_timer() -> str:
    word = workflow.Channel("word", str)
    timer = workflow.spawn(workflow.sleep, 0.2)
    received = workflow.spawn(word.receive)
    both: list[workflow.Task[Any]] = [timer, received]
    workflow.wait(both, return_when="FIRST_COMPLETED")
    if received.done():
        timer.cancel()
        return "told"
    received.cancel()
    return "time is up"


@scenario("loose")
def signal_wins_over_later_timer_in_same_task(world: World) -> None:
    handle = world.start(waits_for_signal_or_timer)
    world.wait_for_event(handle, "TIMER_STARTED")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
    world.stop_worker()
    handle.signal("word", "now")
    if world.engine != "file":  # without a process that has the file open, no timer fires
        world.wait_for_event(handle, "TIMER_FIRED")
    world.start_worker()
    assert handle.result(timeout=LIMIT) == "told"
    world.handles.clear()  # on a file the run may end before the timer fires


@scenario()
def cancelled_run_has_status_canceled(world: World) -> None:
    handle = world.start(sleeps_until_cancelled)
    world.wait_for_event(handle, "TIMER_STARTED")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)
    assert handle.describe().status == WorkflowStatus.CANCELED
