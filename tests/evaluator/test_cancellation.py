"""Cancellation: delivered once, at the current wait; cleanup code runs; no request is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import ActivityError, ApplicationError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType, Channel

from .activities import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

inbox: Channel[int] = Channel("inbox", int)


def never() -> bool:
    return False


def held_lock() -> workflow.Lock:
    lock = workflow.Lock()
    lock.acquire()
    return lock


WAITS: dict[str, Callable[[], object]] = {
    "activity": lambda: charge("a"),
    "local activity": lambda: charge.local("a"),
    "sleep": lambda: workflow.sleep(10),
    "condition": lambda: workflow.wait_condition(never),
    "condition with timeout": lambda: workflow.wait_condition(never, timeout=10),
    "channel": lambda: inbox.receive(),
    "channel with timeout": lambda: inbox.receive(timeout=10),
    "task": lambda: workflow.spawn(workflow.sleep, 10).result(),
    "gather": lambda: workflow.gather(workflow.spawn(workflow.sleep, 10), charge.start("a")),
    "wait": lambda: workflow.wait([workflow.spawn(workflow.sleep, 10)]),
    "wait with timeout": lambda: workflow.wait([workflow.spawn(workflow.sleep, 10)], timeout=10),
    "as_completed": lambda: list(workflow.as_completed([charge.start("a")])),
    "lock": lambda: held_lock().acquire(),
    "semaphore": lambda: workflow.Semaphore(0).acquire(),
    "event": lambda: workflow.Event().wait(),
    "queue get": lambda: workflow.Queue[int]().get(),
    "map": lambda: workflow.map(charge, ["a", "b"]),
}


@pytest.mark.parametrize("kind", WAITS)
def test_cancellation_interrupts_every_kind_of_wait(begin_run: Drive, kind: str) -> None:
    """The run may issue commands in `finally`, and ends as cancelled."""
    wait = WAITS[kind]

    @workflow.defn
    def run() -> None:
        try:
            wait()
        finally:
            refund("o1")

    d = begin_run(run)
    d.send(cancel())
    while "refund" not in d.activities:
        assert d.owed, f"the run issued no refund: {d.pending}"
        d.send()
    assert not d.was_cancelled
    d.send(d.done("refund", ""))
    assert d.was_cancelled


def test_except_cancelled_may_schedule_a_compensating_activity(begin_run: Drive) -> None:
    @workflow.defn
    def checkout(order: str) -> None:
        charge(order)
        try:
            workflow.sleep(3600)
        except workflow.Cancelled:
            refund(order)
            raise

    d = begin_run(checkout, "o1")
    d.send(d.done("charge", ""))
    assert brief(d.send(cancel("changed my mind"))) == ["cancel timer 1", "refund(o1)"]
    assert brief(d.send(d.done("refund", ""))) == ["CancelRun"]


def test_cancelled_exit_stack_runs_its_callbacks_in_reverse_order(begin_run: Drive) -> None:
    @workflow.defn
    def saga() -> None:
        with ExitStack() as stack:
            stack.callback(work, "undo 1")
            stack.callback(work, "undo 2")
            workflow.sleep(10)

    d = begin_run(saga)
    assert brief(d.send(cancel())) == ["cancel timer 1", "work(undo 2)"]
    assert brief(d.send(d.done("work"))) == ["work(undo 1)"]
    d.send(d.done("work"))
    assert d.was_cancelled


def test_second_cancellation_request_is_delivered(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        deliveries = 0
        for _ in range(2):
            try:
                workflow.sleep(10)
            except workflow.Cancelled:
                deliveries += 1
        return str(deliveries)

    d = begin_run(run)
    d.send(cancel())
    d.send(cancel())
    assert d.result == "2"


def test_except_exception_does_not_catch_cancelled(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        try:
            workflow.sleep(10)
        except Exception:
            return "swallowed"
        return ""

    d = begin_run(run)
    d.send(cancel())
    assert d.was_cancelled


def test_spawned_tasks_are_not_cancelled_by_the_run(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        task = workflow.spawn(charge, "side")
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            return task.result()
        return ""

    d = begin_run(run)
    assert brief(d.send(cancel())) == ["cancel timer 1"]
    d.send(d.done("charge", "still there"))
    assert d.result == "still there"


def test_uncaught_task_cancellation_does_not_cancel_the_run(drive: Drive) -> None:
    """A run ends as cancelled only if its cancellation was requested."""

    @workflow.defn
    def run() -> None:
        task = workflow.spawn(workflow.sleep, 10)
        workflow.spawn(task.cancel)
        task.result()

    d = drive(run)
    d.offer(d.started)
    assert not d.was_cancelled
    assert isinstance(d.run.error, TaskCancelledError)


def test_cancelled_task_runs_its_finally_block(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        def side() -> None:
            try:
                workflow.sleep(10)
            finally:
                refund("side")

        task = workflow.spawn(side)
        workflow.sleep(1)
        before = [task.cancel(), task.done()]
        workflow.wait([task])
        return [*before, task.cancelled(), task.cancel()]

    d = begin_run(run)
    assert brief(d.send(d.fired(1))) == ["cancel timer 2", "refund(side)"]
    d.send(d.done("refund", ""))
    assert d.result == [True, False, True, False]


def test_task_cancelled_before_its_start_never_runs(drive: Drive) -> None:
    @workflow.defn
    def run() -> bool:
        task = workflow.spawn(charge, "never")
        task.cancel()
        workflow.wait([task])
        return task.cancelled()

    d = drive(run)
    assert brief(d.begin()) == ["CompleteRun"]
    assert d.result is True


@pytest.mark.parametrize("kind", list(ActivityCancellationType))
def test_waiting_for_a_cancelled_activity_raises_activity_error(
    begin_run: Drive, kind: ActivityCancellationType
) -> None:
    @workflow.defn
    def run() -> str:
        task = charge.options(cancellation_type=kind).start("a")
        workflow.sleep(1)
        task.cancel()
        try:
            task.result()
        except ActivityError as error:
            return f"{type(error.cause).__name__} {task.cancelled()}"
        return ""

    d = begin_run(run)
    assert brief(d.send(d.fired())) == ["cancel activity 1"]
    if kind is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
        assert not d.owed
        d.owed.append(d.cancelled_activity(1))
    d.send()
    assert d.result == "CancelledError True"


def test_activity_may_complete_despite_its_cancellation(begin_run: Drive) -> None:
    """With WAIT_CANCELLATION_COMPLETED the activity's own outcome counts."""

    @workflow.defn
    def run() -> str:
        kind = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
        task = charge.options(cancellation_type=kind).start("a")
        workflow.sleep(1)
        task.cancel()
        return task.result()

    d = begin_run(run)
    d.send(d.fired())
    d.send(d.done(1, "charged all the same"))
    assert d.result == "charged all the same"


def test_activity_cancelled_in_its_first_activation_is_scheduled_first(drive: Drive) -> None:
    @workflow.defn
    def run() -> str:
        task = charge.start("a")
        task.cancel()
        try:
            task.result()
        except (ActivityError, TaskCancelledError) as error:
            return type(error).__name__
        return ""

    d = drive(run)
    assert brief(d.begin())[:2] == ["charge(a)", "cancel activity 1"]


def test_exception_in_finally_replaces_the_cancellation(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        try:
            workflow.sleep(10)
        finally:
            raise ApplicationError("clean-up failed")

    d = begin_run(run)
    d.send(cancel())
    assert str(d.failure) == "clean-up failed"


def test_uncaught_error_of_a_cancelled_activity_ends_a_cancelled_run_as_cancelled(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        task = charge.start("a")
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            task.cancel()
            task.result()

    d = begin_run(run)
    d.send(cancel())
    d.send()
    assert d.was_cancelled


def test_info_has_the_cancellation_reason_after_it_was_swallowed(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> list[Any]:
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            pass
        return [workflow.info().cancel_requested, workflow.info().cancel_reason]

    d = begin_run(run)
    d.send(cancel("because"))
    assert d.result == [True, "because"]


def test_signal_handler_can_cancel_a_task_that_the_workflow_awaits(begin_run: Drive) -> None:
    @workflow.defn
    class Job:
        @workflow.run
        def run(self) -> str:
            self.task = charge.start("a")
            try:
                return self.task.result()
            except ActivityError:
                return "stopped"

        @workflow.signal
        def stop(self) -> None:
            self.task.cancel()

    d = begin_run(Job)
    assert brief(d.send(signal("stop"))) == ["cancel activity 1"]
    d.send()
    assert d.result == "stopped"
