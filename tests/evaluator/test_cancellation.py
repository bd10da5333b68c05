"""Cancellation: delivered once, where a fiber waits; cleaning up works as written; it is never lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import ActivityError, ApplicationError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType, Channel

from .acts import charge, refund, work
from .conftest import Drive
from .driver import brief, cancel, signal

inbox: Channel[int] = Channel("inbox", int)


def forever() -> bool:
    """A condition that never holds."""
    return False


def held_lock() -> workflow.Lock:
    """A lock that somebody else holds."""
    lock = workflow.Lock()
    lock.acquire()
    return lock


WAITS: dict[str, Callable[[], object]] = {
    "activity": lambda: charge("a"),
    "local activity": lambda: charge.local("a"),
    "sleep": lambda: workflow.sleep(10),
    "condition": lambda: workflow.wait_condition(forever),
    "condition with timeout": lambda: workflow.wait_condition(forever, timeout=10),
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
def test_cancellation_at_each_kind_of_wait(drive: Drive, kind: str) -> None:
    """`Cancelled` is raised where the body waits, `finally` may issue commands, and the run ends as cancelled."""
    wait = WAITS[kind]

    @workflow.defn
    def run() -> None:
        try:
            wait()
        finally:
            refund("o1")

    d = drive(run)
    d.begin()
    d.send(cancel())
    while "refund" not in d.activities:
        assert d.owed, f"nothing came after the cancellation: {d.pending}"
        d.send()
    assert not d.was_cancelled
    d.send(d.done("refund", ""))
    assert d.was_cancelled


def test_refund_after_a_cancellation(drive: Drive) -> None:
    """The example of every page on cancellation: `except Cancelled`, a durable call, and out again."""

    @workflow.defn
    def checkout(order: str) -> None:
        charge(order)
        try:
            workflow.sleep(3600)
        except workflow.Cancelled:
            refund(order)
            raise

    d = drive(checkout, "o1")
    d.begin()
    d.send(d.done("charge", ""))
    assert brief(d.send(cancel("changed my mind"))) == ["cancel timer 1", "refund(o1)"]
    assert brief(d.send(d.done("refund", ""))) == ["CancelRun"]


def test_exit_stack_unwinds_in_order(drive: Drive) -> None:
    """Callbacks of an `ExitStack` are durable calls like any other."""

    @workflow.defn
    def saga() -> None:
        with ExitStack() as stack:
            stack.callback(work, "undo 1")
            stack.callback(work, "undo 2")
            workflow.sleep(10)

    d = drive(saga)
    d.begin()
    assert brief(d.send(cancel())) == ["cancel timer 1", "work(undo 2)"]
    assert brief(d.send(d.done("work"))) == ["work(undo 1)"]
    d.send(d.done("work"))
    assert d.was_cancelled


def test_swallowed_cancellation_lets_the_run_complete(drive: Drive) -> None:
    """It was delivered once, the author chose to go on: later waits are not disturbed."""

    @workflow.defn
    def stubborn() -> str:
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            pass
        workflow.sleep(10)
        return charge("anyway")

    d = drive(stubborn)
    d.begin()
    d.send(cancel())
    d.finish(lambda name, arguments: "done")
    assert d.result == "done"


def test_second_cancellation_is_delivered(drive: Drive) -> None:
    """A cancellation during the clean-up interrupts it."""

    @workflow.defn
    def run() -> str:
        said = 0
        for _ in range(2):
            try:
                workflow.sleep(10)
            except workflow.Cancelled:
                said += 1
        return str(said)

    d = drive(run)
    d.begin()
    d.send(cancel())
    d.send(cancel())
    assert d.result == "2"


def test_except_exception_does_not_catch_cancelled(drive: Drive) -> None:
    """`Cancelled` is a BaseException: retry loops let it pass."""

    @workflow.defn
    def run() -> str:
        try:
            workflow.sleep(10)
        except Exception:
            return "swallowed"
        return ""

    d = drive(run)
    d.begin()
    d.send(cancel())
    assert d.was_cancelled


def test_cancellation_together_with_the_start(drive: Drive) -> None:
    """The body begins, and is cancelled at its first wait."""

    @workflow.defn
    def run() -> str:
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            return "saw it"
        return ""

    d = drive(run)
    d.begin(cancel())
    assert d.result == "saw it"


def test_spawned_tasks_are_not_cancelled_by_the_run(drive: Drive) -> None:
    """A cancellation reaches what the body waits for, not fibers that are merely spawned."""

    @workflow.defn
    def run() -> str:
        task = workflow.spawn(charge, "side")
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            return task.result()
        return ""

    d = drive(run)
    d.begin()
    assert brief(d.send(cancel())) == ["cancel timer 1"]
    d.send(d.done("charge", "still there"))
    assert d.result == "still there"


def test_cancelled_task_does_not_cancel_the_run(drive: Drive) -> None:
    """The body learns of it as an ordinary exception, and the run is not cancelled: nobody asked for that."""

    @workflow.defn
    def run() -> str:
        task = workflow.spawn(workflow.sleep, 10)
        workflow.sleep(1)
        task.cancel()
        try:
            task.result()
        except TaskCancelledError:
            return charge("the run goes on")
        return ""

    d = drive(run)
    d.begin()
    assert brief(d.send(d.fired(1))) == ["cancel timer 2", "charge(the run goes on)"]
    d.finish(lambda *_: "ok")
    assert d.result == "ok"


def test_escaped_task_cancellation_does_not_cancel_the_run(drive: Drive) -> None:
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


def test_cancelled_task_cleans_up(drive: Drive) -> None:
    """`Task.cancel` raises `Cancelled` inside the task; its `finally` runs, its result is gone."""

    @workflow.defn
    def run() -> list[Any]:
        def side() -> None:
            try:
                workflow.sleep(10)
            finally:
                refund("side")

        task = workflow.spawn(side)
        workflow.sleep(1)
        asked = [task.cancel(), task.done()]
        workflow.wait([task])
        return [*asked, task.cancelled(), task.cancel()]

    d = drive(run)
    d.begin()
    assert brief(d.send(d.fired(1))) == ["cancel timer 2", "refund(side)"]
    d.send(d.done("refund", ""))
    assert d.result == [True, False, True, False]


def test_task_cancelled_before_its_start_never_runs(drive: Drive) -> None:
    """Nothing of it is executed, and nothing scheduled."""

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
def test_cancelled_activity_handle_raises_activity_error(
    drive: Drive, kind: ActivityCancellationType
) -> None:
    """Who waits for an activity that somebody else cancelled sees `ActivityError` with the cause, for each type."""

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

    d = drive(run)
    d.begin()
    assert brief(d.send(d.fired())) == ["cancel activity 1"]
    if kind is ActivityCancellationType.WAIT_CANCELLATION_COMPLETED:
        assert not d.owed
        d.owed.append(d.cancelled_activity(1))
    d.send()
    assert d.result == "CancelledError True"


def test_activity_may_complete_despite_its_cancellation(drive: Drive) -> None:
    """With WAIT_CANCELLATION_COMPLETED the activity has the last word."""

    @workflow.defn
    def run() -> str:
        kind = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
        task = charge.options(cancellation_type=kind).start("a")
        workflow.sleep(1)
        task.cancel()
        return task.result()

    d = drive(run)
    d.begin()
    d.send(d.fired())
    d.send(d.done(1, "charged all the same"))
    assert d.result == "charged all the same"


def test_activity_started_and_cancelled_in_one_activation(drive: Drive) -> None:
    """Both commands are issued, in this order."""

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


def test_failure_during_clean_up_replaces_the_cancellation(drive: Drive) -> None:
    """An exception in `finally` replaces the cancellation, as in any Python program."""

    @workflow.defn
    def run() -> None:
        try:
            workflow.sleep(10)
        finally:
            raise ApplicationError("clean-up failed")

    d = drive(run)
    d.begin()
    d.send(cancel())
    assert str(d.failure) == "clean-up failed"


def test_cancelled_activity_error_ends_a_cancelled_run_as_cancelled(drive: Drive) -> None:
    """A cancelled activity's error that gets out after a request ends the run as cancelled."""

    @workflow.defn
    def run() -> None:
        task = charge.start("a")
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            task.cancel()
            task.result()

    d = drive(run)
    d.begin()
    d.send(cancel())
    d.send()
    assert d.was_cancelled


def test_info_shows_the_cancellation(drive: Drive) -> None:
    """`info` has the request and its reason, also after the cancellation was swallowed."""

    @workflow.defn
    def run() -> list[Any]:
        try:
            workflow.sleep(10)
        except workflow.Cancelled:
            pass
        return [workflow.info().cancel_requested, workflow.info().cancel_reason]

    d = drive(run)
    d.begin()
    d.send(cancel("because"))
    assert d.result == [True, "because"]


def test_signal_handler_can_cancel_a_task_of_the_body(drive: Drive) -> None:
    """A task kept on the object is cancelled from a handler; the body sees an ordinary error."""

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

    d = drive(Job)
    d.begin()
    assert brief(d.send(signal("stop"))) == ["cancel activity 1"]
    d.send()
    assert d.result == "stopped"
