"""Twins of the recorded TypeScript workflows: cancellation, of scopes and of whole runs."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, ChildWorkflowError
from hourglass.workflow import ActivityCancellationType, Cancelled

from ._corpus import HOUR, act, entering, start

TWINS: dict[str, Any] = {}
twin = entering(TWINS)


def outcome(task: Any) -> str:
    """Describe how a cancelled task ended."""
    try:
        task.result()
    except ActivityError:
        return "cancelled"
    return "not cancelled"


@twin("raceInScope")
def race_in_scope() -> Any:
    timer = workflow.spawn(workflow.sleep, HOUR)
    quick = start("echo", "quick")
    done, _ = workflow.wait([quick, timer], return_when="FIRST_COMPLETED")
    timer.cancel()
    return act("echo", quick.result() if quick in done else "timer")


@twin("cancelActivity")
class CancelActivity:
    def __init__(self) -> None:
        self.ready = False

    @workflow.run
    def run(self) -> Any:
        work = start("beats", "x")
        workflow.wait_condition(lambda: self.ready)
        work.cancel()
        if outcome(work) == "cancelled":
            return act("echo", "cleaned")
        return "not cancelled"

    @workflow.signal
    def go(self) -> None:
        self.ready = True


@twin("cancelAndWait")
def cancel_and_wait() -> Any:
    work = start("beats", "x", cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED)
    workflow.sleep(0.1)
    work.cancel()
    return act("echo", "stopped") if outcome(work) == "cancelled" else "not cancelled"


@twin("cancelAbandoned")
def cancel_abandoned() -> Any:
    work = start("gated", "left", cancellation_type=ActivityCancellationType.ABANDON)
    workflow.sleep(0.05)
    work.cancel()
    return act("echo", "gone on") if outcome(work) == "cancelled" else "not cancelled"


@twin("cancelledRun")
def cancelled_run() -> None:
    try:
        act("beats", "x")
    finally:
        with workflow.shield():
            act("echo", "cleanup")


@twin("cancelledSleep")
def cancelled_sleep() -> None:
    try:
        workflow.sleep(HOUR)
    except Cancelled:
        with workflow.shield():
            act("echo", "bye")
        raise


@twin("cancelSwallowed")
def cancel_swallowed() -> Any:
    try:
        workflow.sleep(HOUR)
    except Cancelled:
        pass
    workflow.sleep(0.01)
    return act("echo", "went on")


@twin("scopeTimeout")
def scope_timeout() -> Any:
    try:
        with workflow.timeout(0.1):
            act("beats", "x")
    except TimeoutError:
        return act("echo", "late")
    return "done"


@twin("scopeMany")
def scope_many() -> Any:
    works = [start("beats", name) for name in ("p", "q")]
    timer = workflow.spawn(workflow.sleep, HOUR)
    workflow.sleep(0.05)
    for task in (*works, timer):
        task.cancel()
    workflow.wait([*works, timer])
    return act("echo", ["p", "q", "timer"])


@twin("childCancelled")
def child_cancelled() -> Any:
    handle = workflow.start_child_workflow("kid", "long", id=workflow.info().workflow_id + "-kid")
    workflow.sleep(0.05)
    handle.cancel()
    try:
        handle.result()
    except ChildWorkflowError:
        return act("echo", "child gone")
    return "fine"
