"""Waiting, and doing several things at once: sleep, spawn, gather, map, wait, as_completed, wait_condition."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import StartTimer
from hourglass.errors import ActivityError, ApplicationError, ReadOnlyError, TaskCancelledError, UsageError

from .acts import charge, work
from .conftest import Drive
from .driver import brief, signal


def test_sleep_is_a_timer(drive: Drive) -> None:
    """Durations are timedeltas or seconds, and arrive in nanoseconds."""

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
    """`sleep(0)` lets the others run for a turn, without a command."""

    @workflow.defn
    def nap() -> list[str]:
        said: list[str] = []
        workflow.spawn(lambda: said.append("other"))
        workflow.sleep(0)
        said.append("me")
        return said

    d = drive(nap)
    assert brief(d.begin()) == ["CompleteRun"]
    assert d.result == ["other", "me"]


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), "1", True, 10.0**12])
def test_invalid_durations_are_rejected(drive: Drive, duration: Any) -> None:
    """Negative, infinite and wrong durations are rejected, and no timer is started."""

    @workflow.defn
    def nap() -> str:
        try:
            workflow.sleep(duration)
        except UsageError:
            return "refused"
        return ""

    d = drive(nap)
    assert brief(d.begin()) == ["CompleteRun"]


def test_spawned_functions_begin_when_the_spawner_waits(drive: Drive) -> None:
    """A task begins at the next free turn, in the order of spawning, with its arguments."""

    @workflow.defn
    def run() -> list[str]:
        said: list[str] = []
        tasks = [workflow.spawn(lambda name, end: said.append(name + end), name, end="!") for name in "ab"]
        said.append("main")
        workflow.gather(*tasks)
        return said

    d = drive(run)
    d.begin()
    assert d.result == ["main", "a!", "b!"]


def test_gather_returns_results_in_the_given_order(drive: Drive) -> None:
    """Results are in the order of the tasks, not of their completion; a task passed twice has two results."""

    @workflow.defn
    def run() -> list[str]:
        a, b = charge.start("a"), charge.start("b")
        return workflow.gather(a, b, a, workflow.spawn(lambda: "c"), a)

    d = drive(run)
    d.begin()
    d.send(d.done(2, "B"))
    d.send(d.done(1, "A"))
    assert d.result == ["A", "B", "A", "c", "A"]


def test_gather_without_tasks(drive: Drive) -> None:
    """An empty list, without waiting."""

    @workflow.defn
    def run() -> list[Any]:
        return workflow.gather()

    d = drive(run)
    d.begin()
    assert d.result == []


def test_gather_raises_the_first_failure(drive: Drive) -> None:
    """The other tasks are neither cancelled nor lost."""

    @workflow.defn
    def run() -> list[str]:
        a, b = charge.start("a"), charge.start("b")
        try:
            workflow.gather(a, b)
        except ActivityError as error:
            return [str(error.cause), a.result()]
        return []

    d = drive(run)
    d.begin()
    assert d.send(d.failed(2, "b broke")) == ()
    d.send(d.done(1, "A"))
    assert d.result == ["b broke", "A"]


def test_gather_can_return_errors_in_place(drive: Drive) -> None:
    """With `return_exceptions` errors stand where results would."""

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

    d = drive(run)
    d.begin()
    d.send(d.failed(1))
    d.send(d.fired(1))
    d.send(d.done(2, "B"))
    assert d.result == ["ActivityError", "ApplicationError", "TaskCancelledError", "B"]


def test_gather_of_a_task_cancelled_elsewhere_raises_an_ordinary_error(drive: Drive) -> None:
    """A cancelled child does not cancel the gathering task, which receives `TaskCancelledError`."""

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
    d.send(d.done(2, "goes on"))
    assert d.result == "goes on"


def test_gather_accepts_only_tasks(drive: Drive) -> None:
    """The usual mistake, calling instead of starting, is named."""

    @workflow.defn
    def run() -> str:
        try:
            workflow.gather("result")  # type: ignore[call-overload]
        except UsageError as error:
            return str(error)
        return ""

    d = drive(run)
    d.begin()
    assert "activity.start" in d.result


def test_map_keeps_the_limit_and_the_order(drive: Drive) -> None:
    """Never more than `limit` at a time; results in the order of the items."""

    @workflow.defn
    def run() -> list[str]:
        return workflow.map(charge, ["a", "b", "c", "d"], limit=2)

    d = drive(run)
    assert brief(d.begin()) == ["charge(a)", "charge(b)"]
    assert brief(d.send(d.done(2, "B"))) == ["charge(c)"]
    assert brief(d.send(d.done(3, "C"), d.done(1, "A"))) == ["charge(d)"]
    d.send(d.done(4, "D"))
    assert d.result == ["A", "B", "C", "D"]


def test_map_cancels_pending_calls_after_a_failure(drive: Drive) -> None:
    """The first error is raised."""

    @workflow.defn
    def run() -> list[str]:
        return workflow.map(charge, ["a", "b", "c"])

    d = drive(run)
    d.begin()
    commands = brief(d.send(d.failed(2, "no")))
    assert commands == ["FailRun", "cancel activity 1", "cancel activity 3"]
    assert str(d.failure.__cause__) == "no"


@pytest.mark.parametrize("limit", [0, -1])
def test_map_rejects_a_limit_below_one(drive: Drive, limit: int) -> None:
    """`map` would never finish with a limit below one."""

    @workflow.defn
    def run() -> str:
        try:
            workflow.map(charge, ["a"], limit=limit)
        except UsageError:
            return "refused"
        return ""

    d = drive(run)
    d.begin()
    assert d.result == "refused"


def test_map_without_items(drive: Drive) -> None:
    """An empty list, without waiting."""

    @workflow.defn
    def run() -> list[str]:
        return workflow.map(charge, [], limit=3)

    d = drive(run)
    d.begin()
    assert d.result == []


def waiter(mode: Any) -> Any:
    """A workflow that waits for three activities in one mode, at most 60 s."""

    @workflow.defn
    def run() -> list[list[int]]:
        tasks = [charge.start(name) for name in "abc"]
        done, rest = workflow.wait(tasks, timeout=60, return_when=mode)
        return [[tasks.index(task) for task in done], [tasks.index(task) for task in rest]]

    return run


def test_wait_all_completed(drive: Drive) -> None:
    """ALL_COMPLETED waits for every task, including failed ones, and cancels the timer."""
    d = drive(waiter("ALL_COMPLETED"))
    d.begin()
    d.send(d.failed(2))
    d.send(d.done(3))
    assert brief(d.send(d.done(1))) == ["cancel timer 1", "CompleteRun"]
    assert d.result == [[0, 1, 2], []]


def test_wait_first_completed(drive: Drive) -> None:
    """FIRST_COMPLETED returns the tasks completed by then, in the order of the arguments."""
    d = drive(waiter("FIRST_COMPLETED"))
    d.begin()
    d.send(d.done(3), d.done(1))
    assert d.result == [[0, 2], [1]]


def test_wait_first_exception(drive: Drive) -> None:
    """FIRST_EXCEPTION lets successes pass and returns on the first failure."""
    d = drive(waiter("FIRST_EXCEPTION"))
    d.begin()
    assert d.send(d.done(1)) == ()
    d.send(d.failed(3))
    assert d.result == [[0, 2], [1]]


def test_wait_times_out(drive: Drive) -> None:
    """After the timeout `wait` returns the finished tasks; nothing is cancelled or raised."""
    d = drive(waiter("ALL_COMPLETED"))
    d.begin()
    d.send(d.done(2))
    assert brief(d.send(d.fired())) == ["CompleteRun"]
    assert d.result == [[1], [0, 2]]


def test_invalid_wait_arguments_are_rejected(drive: Drive) -> None:
    """No tasks and unknown modes are refused."""

    @workflow.defn
    def run() -> int:
        refused = 0
        for tasks, mode in (([], "ALL_COMPLETED"), ([charge.start("a")], "SOME")):
            try:
                workflow.wait(tasks, return_when=mode)  # type: ignore[arg-type]
            except UsageError:
                refused += 1
        return refused

    d = drive(run)
    d.begin()
    assert d.result == 2


def test_as_completed_yields_in_completion_order(drive: Drive) -> None:
    """Tasks come as they end; those that ended together in the order of their ends."""

    @workflow.defn
    def run() -> list[str]:
        return [task.result() for task in workflow.as_completed([charge.start(name) for name in "abc"])]

    d = drive(run)
    d.begin()
    d.send(d.done(3, "C"), d.done(1, "A"))
    d.send(d.done(2, "B"))
    assert d.result == ["C", "A", "B"]


def test_condition_that_already_holds_still_takes_a_turn(drive: Drive) -> None:
    """With a timeout it also uses a timer's sequence number, and cancels the timer at once."""

    @workflow.defn
    def run() -> list[str]:
        said: list[str] = []
        workflow.spawn(lambda: said.append("other"))
        workflow.wait_condition(lambda: True, timeout=5)
        said.append("me")
        workflow.sleep(1)
        return said

    d = drive(run)
    assert brief(d.begin()) == ["timer 1", "cancel timer 1", "timer 2"]
    d.send(d.fired())
    assert d.result == ["other", "me"]


def test_condition_made_true_by_another_fiber(drive: Drive) -> None:
    """Conditions are checked whenever no fiber is ready."""

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


def test_wait_condition_times_out(drive: Drive) -> None:
    """`TimeoutError` is raised, and the condition is no longer checked."""

    @workflow.defn
    def run() -> str:
        looks: list[int] = []
        try:
            workflow.wait_condition(lambda: looks.append(1), timeout=5)
        except TimeoutError:
            before = len(looks)
            work("x")
            return "late" if len(looks) == before else "looked on"
        return ""

    d = drive(run)
    d.begin()
    d.send(d.fired())
    d.send(d.done("work"))
    assert d.result == "late"


def test_condition_must_not_issue_commands(drive: Drive) -> None:
    """A durable call in a condition is rejected, and an exception is raised in the waiting fiber."""

    @workflow.defn
    def run() -> None:
        workflow.wait_condition(lambda: charge("a"))

    d = drive(run)
    d.offer(d.started)
    assert isinstance(d.run.error, ReadOnlyError)
    assert "a condition" in str(d.run.error)


def test_conditions_are_checked_in_the_order_of_registration(drive: Drive) -> None:
    """Two that become true together wake in the order in which they were registered."""

    @workflow.defn
    class Waiters:
        def __init__(self) -> None:
            self.go = False

        @workflow.run
        def run(self) -> list[str]:
            said: list[str] = []

            def one(name: str) -> None:
                workflow.wait_condition(lambda: self.go)
                said.append(name)

            workflow.gather(*[workflow.spawn(one, name) for name in "abc"])
            return said

        @workflow.signal
        def start(self) -> None:
            self.go = True

    d = drive(Waiters)
    d.begin()
    d.send(signal("start"))
    assert d.result == ["a", "b", "c"]


def test_task_cannot_wait_for_itself(drive: Drive) -> None:
    """A task that waits for itself would never end, so this is rejected."""

    @workflow.defn
    def run() -> str:
        box: list[Any] = []

        def me() -> str:
            try:
                box[0].result()
            except UsageError:
                return "refused"
            return ""

        box.append(workflow.spawn(me))
        return str(box[0].result())

    d = drive(run)
    d.begin()
    assert d.result == "refused"


def test_outcome_of_a_task(drive: Drive) -> None:
    """`done`, `cancelled`, `exception` and `result` can be called repeatedly."""

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

    d = drive(run)
    d.begin()
    assert d.result == [False, False, True, None, 1, "mine", False, 1]
