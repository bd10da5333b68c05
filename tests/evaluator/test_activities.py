"""Activities scheduled by workflow code: calls, tasks, options, names, methods, local activities."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass._evaluator.commands import ScheduleActivity, ScheduleLocalActivity, StartTimer
from hourglass._evaluator.events import ActivityBackedOff, ActivityCompleted
from hourglass.errors import ActivityError, ApplicationError, ArgumentError, DecodeError, UsageError
from hourglass.workflow import ActivityCancellationType

from .activities import charge, listing, work
from .conftest import Drive
from .driver import EPOCH, arguments_of, brief, encode, error_in_workflow


def test_activity_call_waits_for_the_result(drive: Drive) -> None:
    @workflow.defn
    def pay(order: str) -> str:
        return "paid by " + charge(order, 5)

    d = drive(pay, "o1")
    (command,) = d.begin()
    assert isinstance(command, ScheduleActivity)
    assert (command.seq, command.activity_id, command.activity_type) == (1, "1", "charge")
    assert arguments_of(command) == ["o1", 5]
    assert (command.spec.start_to_close_timeout, command.spec.heartbeat_timeout) == (600.0, 30.0)
    d.send(d.done("charge", "card"))
    assert d.result == "paid by card"


def test_activity_options_apply_only_to_their_own_call(drive: Drive) -> None:
    @workflow.defn
    def pay() -> None:
        slow = charge.options(
            start_to_close_timeout=5,
            heartbeat_timeout=7,
            task_queue="other",
            activity_id="mine",
            retry_policy=RetryPolicy(maximum_attempts=3),
            cancellation_type=ActivityCancellationType.ABANDON,
            summary="a note",
        )
        slow.start("a")
        charge.start("b")

    d = drive(pay)
    first, second, _ = d.begin()
    assert isinstance(first, ScheduleActivity)
    assert (first.spec.start_to_close_timeout, first.spec.heartbeat_timeout) == (5.0, 7.0)
    assert (first.spec.task_queue, first.activity_id, first.summary) == ("other", "mine", encode("a note"))
    assert first.spec.retry_policy is not None
    assert first.spec.retry_policy.maximum_attempts == 3
    assert first.spec.cancellation_type is ActivityCancellationType.ABANDON
    assert isinstance(second, ScheduleActivity)
    assert (second.activity_id, second.spec.task_queue, second.spec.retry_policy) == ("2", "", None)


def test_activity_called_by_name_needs_no_definition(drive: Drive) -> None:
    """The result is decoded as `result_type`, and the default heartbeat timeout does not apply."""

    @workflow.defn
    def pay() -> list[Any]:
        raw = workflow.execute_activity("remote", 1, "two", start_to_close_timeout=3)
        typed = workflow.execute_activity("remote", result_type=tuple[int, int])
        return [raw, isinstance(typed, tuple)]

    d = drive(pay)
    (command,) = d.begin()
    assert isinstance(command, ScheduleActivity)
    assert command.spec.heartbeat_timeout == 0
    assert arguments_of(command) == [1, "two"]
    d.send(d.done("remote", {"a": 1}))
    d.send(d.done("remote", [1, 2]))
    assert d.result == [{"a": 1}, True]


def test_failed_activity_raises_activity_error_with_its_cause(begin_run: Drive) -> None:
    @workflow.defn
    def pay() -> list[str]:
        try:
            charge("a")
        except ActivityError as error:
            kind = error.cause.type if isinstance(error.cause, ApplicationError) else ""
            return [error.activity_type, kind, str(error.cause)]
        return []

    d = begin_run(pay)
    d.send(d.failed("charge", "no money", type="Poor"))
    assert d.result == ["charge", "Poor", "no money"]


def test_activity_call_with_wrong_arguments_is_rejected_before_scheduling() -> None:
    error = error_in_workflow(lambda: charge("a", 1, 2))  # type: ignore[call-arg]
    assert isinstance(error, ArgumentError)


def test_activity_keyword_arguments_are_sent_by_position(drive: Drive) -> None:
    @workflow.defn
    def pay() -> None:
        charge(cents=3, order="x")

    assert brief(drive(pay).begin()) == ["charge(x, 3)"]


def test_activity_result_of_the_wrong_type_raises_decode_error(begin_run: Drive) -> None:
    @workflow.defn
    def pay() -> str:
        try:
            listing("a")
        except DecodeError:
            return "not a list"
        return ""

    d = begin_run(pay)
    d.send(d.done("listing", "text"))
    assert d.result == "not a list"


def test_activity_without_result_returns_none(begin_run: Drive) -> None:
    @workflow.defn
    def pay() -> bool:
        return work("a") is None

    d = begin_run(pay)
    d.send(ActivityCompleted(1))
    assert d.result is True


def test_execute_activity_rejects_functions_that_are_not_activities() -> None:
    assert isinstance(error_in_workflow(lambda: workflow.execute_activity(len, "a")), UsageError)


def test_local_activity_backs_off_through_a_timer(begin_run: Drive) -> None:
    """A long back-off is a timer, followed by the next attempt under a new sequence number."""

    @workflow.defn
    def pay() -> str:
        return charge.local("a")

    d = begin_run(pay)
    (timer,) = d.send(ActivityBackedOff(1, 5, 90.0, EPOCH))
    assert timer == StartTimer(1, 90 * 10**9)
    (again,) = d.send(d.fired())
    assert isinstance(again, ScheduleLocalActivity)
    assert (again.seq, again.activity_id, again.attempt) == (2, "2", 5)
    assert again.original_schedule_time_ns == EPOCH
    d.send(d.done(2, "late"))
    assert d.result == "late"


@pytest.mark.parametrize("together", [False, True], ids=["during the back-off", "together with the timer"])
def test_cancellation_during_local_activity_backoff_prevents_the_next_attempt(
    begin_run: Drive, together: bool
) -> None:
    @workflow.defn
    def pay() -> str:
        task = charge.start_local("a")
        other = workflow.spawn(task.result)
        workflow.sleep(50)
        task.cancel()
        workflow.wait([other])
        return "cancelled" if task.cancelled() else "not cancelled"

    d = begin_run(pay)
    d.send(ActivityBackedOff(1, 2, 90.0, EPOCH))
    commands = brief(d.send(d.fired(1), *([d.fired(2)] if together else [])))
    assert commands == (["CompleteRun"] if together else ["cancel timer 2", "CompleteRun"])
    assert d.result == "cancelled"
