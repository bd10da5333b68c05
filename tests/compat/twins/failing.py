"""Twins of `programs.failing`."""

from __future__ import annotations

from typing import Any

from hourglass import RetryPolicy, workflow
from hourglass.errors import ActivityError, ApplicationError, TimedOutError

from ._corpus import act, twin


@twin("ActivityFails")
def activity_fails() -> str:
    try:
        act("fails", "this")
    except ActivityError as error:
        cause: Any = error.cause
        return str(act("echo", f"{cause.message}, {cause.type}"))
    return "no failure"


@twin("ActivityRetries")
def activity_retries() -> str:
    return str(
        act("flaky", "third time", retry_policy=RetryPolicy(initial_interval=0.05, maximum_attempts=5))
    )


@twin("ActivityGivesUp")
def activity_gives_up() -> list[str]:
    def guarded() -> str:
        try:
            policy = RetryPolicy(initial_interval=0.02, maximum_attempts=2)
            return str(act("flaky", "gives up", retry_policy=policy))
        except ActivityError:
            act("echo", "gave up")
            return "gave up"

    return list(workflow.gather(workflow.spawn(guarded), workflow.spawn(act, "echo", "other")))


@twin("ActivityTimesOut")
def activity_times_out() -> str:
    try:
        act("gated", "never", start_to_close_timeout=1, retry_policy=RetryPolicy(maximum_attempts=1))
    except ActivityError as error:
        act("echo", f"timed out: {isinstance(error.cause, TimedOutError)}")
    return "end"


@twin("RunFails")
def run_fails() -> None:
    act("echo", "before")
    raise ApplicationError("broken", "detail", 7, type="Broken", non_retryable=True)


@twin("ActivityErrorEscapes")
def activity_error_escapes() -> None:
    def other() -> None:
        workflow.sleep(0.01)
        act("echo", "other")

    task = workflow.spawn(other)
    act("echo", "before")
    task.result()
    act("fails", "this")


@twin("TimeoutEscapes")
def timeout_escapes() -> None:
    workflow.wait_condition(lambda: False, timeout=0.1)


@twin("HandlerFails")
class HandlerFails:
    @workflow.run
    def run(self) -> None:
        workflow.wait_condition(lambda: False)

    @workflow.signal
    def explode(self) -> None:
        act("echo", "fuse")
        raise ApplicationError("boom")


@twin("TaskFailsUnseen")
def task_fails_unseen() -> str:
    def doomed() -> None:
        act("fails", "unseen")

    task = workflow.spawn(doomed)
    result = act("gated", "b")
    workflow.sleep(0.01)
    assert task.done()
    task.exception()
    return str(result)
