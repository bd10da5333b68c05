"""I7: if a cancellation and a result arrive in one activation, the cancellation wins, in either order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import operations
from hourglass._evaluator.commands import ScheduleActivity, SignalExternalWorkflow, StartChildWorkflow
from hourglass._evaluator.events import AnyEvent, ChildCompleted, ChildStarted, ExternalSignalResolved
from hourglass.workflow import Channel

from .activities import charge, refund
from .conftest import Drive
from .driver import Driver, brief, cancel, encode, signal

inbox: Channel[int] = Channel("inbox", int)


def child_result() -> Any:
    command = StartChildWorkflow(seq=0, workflow_id="c", workflow_type="child_result")
    return operations.start_child(command, str).result()


def signal_other() -> None:
    operations.signal_external(SignalExternalWorkflow(seq=0, workflow_id="o", signal_name="hello"))


def wait_for_activity_by_condition() -> Any:
    box: list[str] = []
    workflow.spawn(lambda: box.append(charge("a")))
    workflow.wait_condition(lambda: box)
    return box[0]


def wait_for_activity_by_condition_with_timeout() -> Any:
    box: list[str] = []
    workflow.spawn(lambda: box.append(charge("a")))
    workflow.wait_condition(lambda: box, timeout=99)
    return box[0]


CASES: dict[str, tuple[Callable[[], Any], Callable[[Driver], list[AnyEvent]]]] = {
    "activity": (lambda: charge("a"), lambda d: [d.done("charge", "A")]),
    "local activity": (lambda: charge.local("a"), lambda d: [d.done("charge", "A")]),
    "failed activity": (lambda: charge("a"), lambda d: [d.failed("charge")]),
    "timer": (lambda: workflow.sleep(5), lambda d: [d.fired()]),
    "task": (lambda: workflow.spawn(charge, "a").result(), lambda d: [d.done("charge", "A")]),
    "gather": (
        lambda: workflow.gather(charge.start("a"), charge.start("b")),
        lambda d: [d.done(1, "A"), d.done(2, "B")],
    ),
    "wait": (lambda: workflow.wait([charge.start("a")]), lambda d: [d.done("charge", "A")]),
    "condition": (wait_for_activity_by_condition, lambda d: [d.done("charge", "A")]),
    "condition with timeout": (
        wait_for_activity_by_condition_with_timeout,
        lambda d: [d.done("charge", "A")],
    ),
    "condition that times out": (
        lambda: workflow.wait_condition(lambda: False, timeout=5),
        lambda d: [d.fired()],
    ),
    "receive that times out": (lambda: inbox.receive(timeout=5), lambda d: [d.fired()]),
    "child_result": (child_result, lambda d: [ChildCompleted(1, encode("C"))]),
}


@pytest.mark.parametrize("cancel_first", [True, False], ids=["cancel first", "result first"])
@pytest.mark.parametrize("kind", CASES)
def test_cancellation_wins_over_a_result_of_the_same_activation(
    begin_run: Drive, kind: str, cancel_first: bool
) -> None:
    wait, answer = CASES[kind]

    @workflow.defn
    def run() -> str:
        try:
            wait()
        except workflow.Cancelled:
            refund("o1")
            raise
        return "the result won"

    d = begin_run(run)
    if kind == "child_result":
        d.send(ChildStarted(1, "run"))
    events: list[AnyEvent] = [*answer(d), cancel()]
    d.send(*(reversed(events) if cancel_first else events))
    while d.owed:
        d.send()
    assert d.activities == ["refund"], d.terminal
    d.send(d.done("refund", ""))
    assert d.was_cancelled


def test_signal_is_received_before_a_cancellation_of_the_same_activation(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> int:
        got = inbox.receive()
        try:
            workflow.sleep(5)
        except workflow.Cancelled:
            return got
        return 0

    d = begin_run(run)
    d.send(cancel(), signal("inbox", 7))
    assert d.result == 7


def test_cancellation_that_arrives_with_an_external_signal_result_is_delivered(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        try:
            signal_other()
            workflow.sleep(5)
        except workflow.Cancelled:
            return "saw it"
        return "lost"

    d = begin_run(run)
    d.send(ExternalSignalResolved(1), cancel())
    while d.terminal is None and d.timers:
        d.send(d.fired())
    assert d.result == "saw it"


def test_fiber_of_a_closed_run_issues_no_commands(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        def side() -> None:
            try:
                charge("side")
            finally:
                refund("side")

        task = workflow.spawn(side)
        workflow.sleep(1)
        task.cancel()
        return "done"

    d = begin_run(run)
    first = d.send(d.fired())
    assert brief(first)[0] == "CompleteRun"
    assert not any(isinstance(command, ScheduleActivity) for command in first)
    assert d.send() == ()
    assert d.send(signal("anything")) == ()
    assert d.send(cancel()) == ()
