"""Twins of `programs.cancelling`."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType

from ._corpus import act, start, twin, wait_for


@twin("CancelDuringActivity")
def cancel_during_activity() -> None:
    try:
        act("gated", "x")
    except workflow.Cancelled:
        act("echo", "clean up")
        raise


@twin("CancelDuringTimer")
def cancel_during_timer() -> None:
    try:
        workflow.sleep(100)
    finally:
        act("echo", "clean up")
        workflow.sleep(0.01)


@twin("CancelDuringCondition")
def cancel_during_condition() -> None:
    def limited() -> None:
        try:
            workflow.wait_condition(lambda: False, timeout=100)
        finally:
            act("echo", "limited")

    try:
        limited()
    except workflow.Cancelled:
        act("echo", "caught")
        raise


@twin("CancelDuringGather")
def cancel_during_gather() -> None:
    def work(name: str) -> None:
        try:
            act("gated", name)
        except workflow.Cancelled:
            act("echo", "stopped " + name)
            raise

    def nap() -> None:
        try:
            workflow.sleep(100)
        finally:
            start("echo", "woken")

    try:
        workflow.gather(workflow.spawn(work, "a"), workflow.spawn(nap), workflow.spawn(work, "b"))
    finally:
        act("echo", "clean up")
        workflow.sleep(0.5)


def _one_gated() -> str:
    try:
        result = str(act("gated", "x"))
    except workflow.Cancelled:
        act("echo", "cancelled")
        return "cancelled"
    act("echo", "got " + result)
    return result


@twin("CancelThenResult")
def cancel_then_result() -> str:
    return _one_gated()


@twin("ResultThenCancel")
def result_then_cancel() -> str:
    return _one_gated()


def _one_nap() -> str:
    try:
        workflow.sleep(1)
    except workflow.Cancelled:
        act("echo", "cancelled")
        return "cancelled"
    act("echo", "slept")
    return "slept"


@twin("CancelThenTimer")
def cancel_then_timer() -> str:
    return _one_nap()


@twin("TimerThenCancel")
def timer_then_cancel() -> str:
    return _one_nap()


@twin("CleanUpSteps")
def clean_up_steps() -> None:
    try:
        try:
            workflow.sleep(100)
        finally:
            workflow.gather(workflow.spawn(act, "echo", "undo a"), workflow.spawn(act, "echo", "undo b"))
            workflow.sleep(0.01)
    finally:
        act("echo", "undo c")


@twin("CancelSwallowed")
def cancel_swallowed() -> str:
    try:
        workflow.sleep(100)
    except workflow.Cancelled:
        act("echo", "never mind")
    workflow.sleep(0.01)
    act("echo", "going on")
    return "completed"


@twin("CancelSparesSpawned")
def cancel_spares_spawned() -> None:
    workflow.spawn(workflow.sleep, 1000)
    start("gated", "unanswered")
    try:
        workflow.sleep(500)
    except workflow.Cancelled:
        act("echo", "clean up")
        raise


@twin("CancelTasks")
def cancel_tasks() -> list[bool]:
    def on_activity() -> None:
        try:
            act("gated", "n1")
        except workflow.Cancelled:
            act("echo", "activity stopped")
            raise

    def on_sleep() -> None:
        try:
            workflow.sleep(100)
        finally:
            start("echo", "sleep stopped")

    def on_gather() -> None:
        try:
            workflow.gather(workflow.spawn(workflow.sleep, 100), workflow.spawn(workflow.sleep, 200))
        finally:
            start("echo", "gather stopped")

    tasks = [workflow.spawn(task) for task in (on_activity, on_sleep, on_gather)]
    act("echo", "first")
    for number, task in enumerate(tasks):
        task.cancel()
        start("echo", f"cancelled {number}")
    outcomes = workflow.gather(*tasks, return_exceptions=True)
    act("echo", "end")
    return [isinstance(outcome, TaskCancelledError) for outcome in outcomes]


@twin("CancelBeforeStart")
def cancel_before_start() -> list[bool]:
    task = workflow.spawn(act, "echo", "never")
    handle = start("echo", "void")
    task.cancel()
    handle.cancel()
    workflow.gather(task, handle, return_exceptions=True)
    act("echo", "end")
    return [True, True]


@twin("CancellationTypes")
def cancellation_types() -> list[str]:
    def one(name: str, kind: ActivityCancellationType) -> str:
        handle = start("gated", name, cancellation_type=kind)
        workflow.sleep(0.5)
        handle.cancel()
        try:
            result = str(handle.result())
        except ActivityError:
            result = "cancelled"
        act("echo", f"{name} {result}")
        return result

    tasks = [
        workflow.spawn(one, "try_it", ActivityCancellationType.TRY_CANCEL),
        workflow.spawn(one, "wait_for_it", ActivityCancellationType.WAIT_CANCELLATION_COMPLETED),
        workflow.spawn(one, "abandon_it", ActivityCancellationType.ABANDON),
    ]
    act("echo", "main")
    return workflow.gather(*tasks)


@twin("CancelHeartbeating")
def cancel_heartbeating() -> None:
    try:
        act(
            "beats",
            heartbeat_timeout=5,
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
    except workflow.Cancelled:
        act("echo", "clean up")
        raise


@twin("ShieldedWork")
def shielded_work() -> None:
    def work() -> None:
        act("gated", "work")
        act("echo", "worked")

    task = workflow.spawn(work)
    try:
        workflow.wait([task])  # waiting does not cancel what is waited for: `asyncio.shield`, turn by turn
    except workflow.Cancelled:
        task.result()
        act("echo", "clean up")
        raise


@twin("SignalAndCancel")
class SignalAndCancel:
    def __init__(self) -> None:
        self.poked = 0

    @workflow.run
    def run(self) -> None:
        try:
            workflow.wait_condition(lambda: self.poked > 1, timeout=100)
        except workflow.Cancelled:
            act("echo", f"cancelled after {self.poked}")
            raise

    @workflow.signal
    def poke(self) -> None:
        self.poked += 1
        act("echo", "poked")


@twin("CancelOtherWaiter")
def cancel_other_waiter() -> list[str]:
    seen: list[str] = []

    def work() -> None:
        workflow.sleep(100)

    task: Any = workflow.spawn(work)

    def watch() -> None:
        try:
            task.result()
        except TaskCancelledError:
            seen.append("the task was cancelled")
            act("echo", "watcher")

    watcher = workflow.spawn(watch)
    handle = start("gated", "a")
    try:
        task.result()
    except workflow.Cancelled:
        seen.append("main was cancelled")
        act("echo", "main")
    workflow.gather(watcher, handle)
    return seen


@twin("ReactsAfterClose")
def reacts_after_close() -> str:
    handle = start("gated", "never")
    task = workflow.spawn(wait_for, handle, 60)
    for _ in range(3):
        workflow.sleep(0)
    task.cancel()
    return "done"
