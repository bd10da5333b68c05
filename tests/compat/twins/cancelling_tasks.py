"""Twins of `programs.cancelling_tasks`."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType

from ._corpus import act, start, twin, wait_for


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
