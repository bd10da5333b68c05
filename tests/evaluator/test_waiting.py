"""Waiting and concurrency: sleep, spawn, gather, map, wait, as_completed, wait_condition."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import StartTimer
from hourglass.errors import ActivityError, ApplicationError, ReadOnlyError, TaskCancelledError, UsageError

from .activities import charge, work
from .conftest import Drive
from .driver import brief, error_in_workflow, signal


def test_sleep_starts_a_timer_of_the_exact_duration(drive: Drive) -> None:
    @workflow.defn
    def nap() -> float:
        begin = workflow.time()
        workflow.sleep(timedelta(days=30))
        workflow.sleep(0.25)
        return workflow.time() - begin

    d = drive(nap)
    assert d.begin() == (StartTimer(1, 30 * 86400 * 10**9),)
    assert d.send(d.fired()) == (StartTimer(2, 250_000_000),)
    d.send(d.fired())
    assert d.result == 2.0


def test_sleep_of_zero_yields_without_a_timer(drive: Drive) -> None:
    @workflow.defn
    def nap() -> list[str]:
        log: list[str] = []
        workflow.spawn(lambda: log.append("other"))
        workflow.sleep(0)
        log.append("me")
        return log

    d = drive(nap)
    assert brief(d.begin()) == ["CompleteRun"]
    assert d.result == ["other", "me"]


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), "1", True, 10.0**12])
def test_sleep_rejects_invalid_durations(duration: Any) -> None:
    assert isinstance(error_in_workflow(lambda: workflow.sleep(duration)), UsageError)


def test_spawned_functions_begin_in_order_when_the_spawner_waits(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        log: list[str] = []
        tasks = [workflow.spawn(lambda name, end: log.append(name + end), name, end="!") for name in "ab"]
        log.append("main")
        workflow.gather(*tasks)
        return log

    d = begin_run(run)
    assert d.result == ["main", "a!", "b!"]


def test_gather_returns_results_in_the_order_of_its_arguments(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        a, b = charge.start("a"), charge.start("b")
        return workflow.gather(a, b, a, workflow.spawn(lambda: "c"), a)

    d = begin_run(run)
    d.send(d.done(2, "B"))
    d.send(d.done(1, "A"))
    assert d.result == ["A", "B", "A", "c", "A"]


@pytest.mark.parametrize(
    "call", [workflow.gather, lambda: workflow.map(charge, [], limit=3)], ids=["gather", "map"]
)
def test_gather_and_map_without_items_return_an_empty_list(begin_run: Drive, call: Any) -> None:
    @workflow.defn
    def run() -> list[Any]:
        return list(call())

    d = begin_run(run)
    assert d.result == []


def test_gather_raises_the_first_failure_and_keeps_other_tasks(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        a, b = charge.start("a"), charge.start("b")
        try:
            workflow.gather(a, b)
        except ActivityError as error:
            return [str(error.cause), a.result()]
        return []

    d = begin_run(run)
    assert d.send(d.failed(2, "b broke")) == ()
    d.send(d.done(1, "A"))
    assert d.result == ["b broke", "A"]


def test_gather_returns_exceptions_as_results_on_request(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        def broken() -> None:
            raise ApplicationError("mine")

        def sleeper() -> None:
            workflow.sleep(100)

        sleeping = workflow.spawn(sleeper)
        tasks: list[Any] = [charge.start("a"), workflow.spawn(broken), sleeping, charge.start("b")]
        workflow.sleep(1)
        sleeping.cancel()
        return [
            value if isinstance(value, str) else type(value).__name__
            for value in workflow.gather(*tasks, return_exceptions=True)
        ]

    d = begin_run(run)
    d.send(d.failed(1))
    d.send(d.fired(1))
    d.send(d.done(2, "B"))
    assert d.result == ["ActivityError", "ApplicationError", "TaskCancelledError", "B"]


def test_gather_of_a_cancelled_task_raises_task_cancelled_error(drive: Drive) -> None:
    @workflow.defn
    def run() -> str:
        task = workflow.spawn(workflow.sleep, 100)
        workflow.spawn(task.cancel)
        try:
            workflow.gather(task, charge.start("a"))
        except TaskCancelledError:
            return charge("after")
        return ""

    d = drive(run)
    assert brief(d.begin())[-1] == "charge(after)"
    d.send(d.done(2, "continued"))
    assert d.result == "continued"


def test_gather_of_a_value_explains_activity_start() -> None:
    """The usual mistake is to call an activity instead of starting it."""
    error = error_in_workflow(lambda: workflow.gather("result"))  # type: ignore[call-overload]
    assert isinstance(error, UsageError)
    assert "activity.start" in str(error)


def test_map_cancels_pending_calls_after_a_failure(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[str]:
        return workflow.map(charge, ["a", "b", "c"])

    d = begin_run(run)
    commands = brief(d.send(d.failed(2, "no")))
    assert commands == ["FailRun", "cancel activity 1", "cancel activity 3"]
    assert str(d.failure.__cause__) == "no"


@pytest.mark.parametrize("limit", [0, -1])
def test_map_rejects_a_limit_below_one(limit: int) -> None:
    assert isinstance(error_in_workflow(lambda: workflow.map(charge, ["a"], limit=limit)), UsageError)


def waiting_for_three(mode: Any) -> Any:
    """Return a workflow that waits for three activities in one mode, at most 60 s."""

    @workflow.defn
    def run() -> list[list[int]]:
        tasks = [charge.start(name) for name in "abc"]
        done, pending = workflow.wait(tasks, timeout=60, return_when=mode)
        return [[tasks.index(task) for task in done], [tasks.index(task) for task in pending]]

    return run


def test_wait_all_completed_waits_for_every_task_and_cancels_the_timer(begin_run: Drive) -> None:
    d = begin_run(waiting_for_three("ALL_COMPLETED"))
    d.send(d.failed(2))
    d.send(d.done(3))
    assert brief(d.send(d.done(1))) == ["cancel timer 1", "CompleteRun"]
    assert d.result == [[0, 1, 2], []]


def test_wait_first_completed_returns_finished_tasks_in_argument_order(begin_run: Drive) -> None:
    d = begin_run(waiting_for_three("FIRST_COMPLETED"))
    d.send(d.done(3), d.done(1))
    assert d.result == [[0, 2], [1]]


def test_wait_rejects_no_tasks_and_unknown_modes(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> int:
        rejected = 0
        for tasks, mode in (([], "ALL_COMPLETED"), ([charge.start("a")], "SOME")):
            try:
                workflow.wait(tasks, return_when=mode)  # type: ignore[arg-type]
            except UsageError:
                rejected += 1
        return rejected

    d = begin_run(run)
    assert d.result == 2


def test_condition_that_already_holds_takes_one_turn(drive: Drive) -> None:
    """With a timeout it also uses a sequence number for its timer, and cancels it."""

    @workflow.defn
    def run() -> list[str]:
        log: list[str] = []
        workflow.spawn(lambda: log.append("other"))
        workflow.wait_condition(lambda: True, timeout=5)
        log.append("me")
        workflow.sleep(1)
        return log

    d = drive(run)
    assert brief(d.begin()) == ["timer 1", "cancel timer 1", "timer 2"]
    d.send(d.fired())
    assert d.result == ["other", "me"]


def test_condition_made_true_by_another_fiber_ends_the_wait(drive: Drive) -> None:
    @workflow.defn
    def run() -> str:
        box: list[str] = []
        workflow.spawn(lambda: box.append(charge("a")))
        workflow.wait_condition(lambda: box)
        return box[0]

    d = drive(run)
    assert brief(d.begin()) == ["charge(a)"]
    d.send(d.done("charge", "A"))
    assert d.result == "A"


def test_timed_out_condition_is_no_longer_checked(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        checks: list[int] = []
        try:
            workflow.wait_condition(lambda: checks.append(1), timeout=5)
        except TimeoutError:
            before = len(checks)
            work("x")
            return "late" if len(checks) == before else "checked again"
        return ""

    d = begin_run(run)
    d.send(d.fired())
    d.send(d.done("work"))
    assert d.result == "late"


def test_durable_call_in_a_condition_is_rejected(drive: Drive) -> None:
    @workflow.defn
    def run() -> None:
        workflow.wait_condition(lambda: charge("a"))

    d = drive(run)
    d.offer(d.started)
    assert isinstance(d.run.error, ReadOnlyError)
    assert "a condition" in str(d.run.error)


def test_conditions_wake_in_the_order_of_registration(begin_run: Drive) -> None:
    @workflow.defn
    class WaitingTasks:
        def __init__(self) -> None:
            self.go = False

        @workflow.run
        def run(self) -> list[str]:
            log: list[str] = []

            def wait(name: str) -> None:
                workflow.wait_condition(lambda: self.go)
                log.append(name)

            workflow.gather(*[workflow.spawn(wait, name) for name in "abc"])
            return log

        @workflow.signal
        def start(self) -> None:
            self.go = True

    d = begin_run(WaitingTasks)
    d.send(signal("start"))
    assert d.result == ["a", "b", "c"]


def test_task_cannot_wait_for_itself(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        box: list[Any] = []

        def me() -> str:
            try:
                box[0].result()
            except UsageError:
                return "rejected"
            return ""

        box.append(workflow.spawn(me))
        return str(box[0].result())

    d = begin_run(run)
    assert d.result == "rejected"


def test_task_outcome_can_be_read_repeatedly(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        def broken() -> None:
            raise ApplicationError("mine")

        good, bad = workflow.spawn(lambda: 1), workflow.spawn(broken)
        before = [good.done(), bad.done()]
        error = bad.exception()
        return [
            *before,
            good.done(),
            good.exception(),
            good.result(),
            str(error),
            bad.cancelled(),
            good.result(),
        ]

    d = begin_run(run)
    assert d.result == [False, False, True, None, 1, "mine", False, 1]
