"""Workflows and activities for several processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hourglass import ApplicationError, RetryPolicy, activity, workflow
from hourglass.workflow import ActivityCancellationType


@activity.defn
def increment(number: int) -> int:
    return number + 1


@workflow.defn
def twice(number: int) -> int:
    return increment(increment(number))


@workflow.defn
class Tally:
    """Counts its signals until it receives `stop`."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.over = False

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: self.over)
        return self.seen

    @workflow.signal
    def note(self, text: str) -> None:
        self.seen.append(text)

    @workflow.signal
    def stop(self) -> None:
        self.over = True

    @workflow.query
    def count(self) -> int:
        return len(self.seen)


@activity.defn
def where() -> int:
    """Return the id of the process."""
    return os.getpid()


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01))
def second_try() -> int:
    if activity.info().attempt == 1:
        raise ApplicationError("not at once")
    return activity.info().attempt


@activity.defn(
    heartbeat_timeout=30.0,
    retry_policy=RetryPolicy(initial_interval=0.01),
    cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
)
def hold(folder: str) -> int:
    """Record the attempt and its process in files, and continue until cancelled or until the file `go` exists. Return
    the process of the previous attempt.
    """
    before = activity.heartbeat_details(int)
    activity.heartbeat(os.getpid())
    attempt = activity.info().attempt
    with (Path(folder) / "executions").open("a") as executions:
        executions.write(f"attempt {attempt}\n")
    (Path(folder) / f"attempt-{attempt}").write_text(str(os.getpid()))
    while not (Path(folder) / "go").exists():
        activity.heartbeat(os.getpid())
        threading.Event().wait(0.01)
    return before or 0


@workflow.defn
def holding(folder: str) -> int:
    return hold(folder)


@activity.defn
def log_execution(folder: str, name: str) -> str:
    """Append the beginning and the end to a file, with the process id."""
    for what in ("began", "ended"):
        if what == "ended":
            threading.Event().wait(0.03)
        with (Path(folder) / "log").open("a") as log:
            log.write(f"{what} {name} {os.getpid()}\n")
    return name


@workflow.defn
def logging(folder: str, name: str, attempts: int) -> str:
    policy = RetryPolicy(maximum_attempts=attempts, initial_interval=0.01)
    return log_execution.options(retry_policy=policy)(folder, name)


@workflow.defn
class Journey:
    """Uses all features of a worker for a run; returns the processes that executed it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @workflow.run
    def run(self, second: bool) -> list[int]:
        workflow.wait_condition(lambda: len(self.notes) >= 2)
        if not second:
            assert second_try() == 2
            workflow.sleep(0.01)
            workflow.continue_as_new(True)
        child: int = twice(1)
        return [os.getpid(), where(), where.local(), *workflow.gather(where.start(), where.start()), child]

    @workflow.signal
    def note(self, text: str) -> None:
        self.notes.append(text)

    @workflow.update
    def change(self, text: str) -> int:
        self.notes.append(text)
        where()
        return len(self.notes)

    @change.validator
    def _is_text(self, text: str) -> None:
        if not text:
            raise ApplicationError("say something")

    @workflow.query
    def count(self) -> int:
        return len(self.notes)


@workflow.defn
def newcomer() -> int:
    """A workflow known only to processes with newer code."""
    return os.getpid()


WORKFLOWS = [twice, Tally, Journey, holding, logging]
ACTIVITIES = [increment, where, second_try, hold, log_execution]
