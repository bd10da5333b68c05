"""I1, the frozen table: the number of turns from an event to the fiber that waits for it.

Each row is a kind of wait. In one activation, a fiber that waits so races against fibers that yield once, twice, … by
`sleep(0)` after a common beginning. Its position among them is its number of turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import operations
from hourglass._evaluator.commands import SignalExternalWorkflow, StartChildWorkflow
from hourglass._evaluator.events import (
    AnyEvent,
    ChildCompleted,
    ChildStarted,
    ExternalCancelResolved,
    ExternalSignalResolved,
)

from .activities import charge
from .conftest import Drive
from .driver import Driver, brief, encode, signal

MAX_TURNS = 6


def child_result() -> None:
    """Wait for the result of a child."""
    operations.start_child(StartChildWorkflow(seq=0, workflow_id="c", workflow_type="c"), Any).result()


def child_start() -> None:
    """Wait for the start of a child."""
    operations.start_child(StartChildWorkflow(seq=0, workflow_id="c", workflow_type="c"), Any)


def external_signal() -> None:
    operations.signal_external(SignalExternalWorkflow(seq=0, workflow_id="o", signal_name="s"))


Row = tuple[Callable[[], Any], Callable[[Driver], list[AnyEvent]], Callable[[Driver], list[AnyEvent]], int]

TABLE: dict[str, Row] = {
    "timer": (lambda: workflow.sleep(9), lambda d: [], lambda d: [d.fired(1)], 2),
    "activity": (lambda: charge("a"), lambda d: [], lambda d: [d.done("charge", "")], 3),
    "local activity": (lambda: charge.local("a"), lambda d: [], lambda d: [d.done("charge", "")], 3),
    "child start": (child_start, lambda d: [], lambda d: [ChildStarted(1, "r")], 2),
    "child result": (
        child_result,
        lambda d: [ChildStarted(1, "r")],
        lambda d: [ChildCompleted(1, encode(None))],
        3,
    ),
    "external signal": (external_signal, lambda d: [], lambda d: [ExternalSignalResolved(1)], 2),
    "external cancel": (
        lambda: operations.cancel_external("o", "", ""),
        lambda d: [],
        lambda d: [ExternalCancelResolved(1)],
        1,
    ),
    "task": (lambda: workflow.spawn(workflow.sleep, 9).result(), lambda d: [], lambda d: [d.fired(1)], 3),
    "gather": (
        lambda: workflow.gather(workflow.spawn(workflow.sleep, 9)),
        lambda d: [],
        lambda d: [d.fired(1)],
        4,
    ),
    "wait": (
        lambda: workflow.wait([workflow.spawn(workflow.sleep, 9)]),
        lambda d: [],
        lambda d: [d.fired(1)],
        4,
    ),
    "as_completed": (
        lambda: list(workflow.as_completed([workflow.spawn(workflow.sleep, 9)])),
        lambda d: [],
        lambda d: [d.fired(1)],
        4,
    ),
    "condition timeout": (
        lambda: _swallow_timeout(),
        lambda d: [],
        lambda d: [d.fired(1)],
        4,
    ),
}


def _swallow_timeout() -> None:
    try:
        workflow.wait_condition(lambda: False, timeout=9)
    except TimeoutError:
        pass


@pytest.mark.parametrize("kind", TABLE)
def test_each_kind_of_wait_takes_the_documented_number_of_turns(begin_run: Drive, kind: str) -> None:
    wait, before, answer, turns = TABLE[kind]

    @workflow.defn
    def run() -> None:
        def subject() -> None:
            wait()
            charge.start("subject")

        def reference(number: int) -> None:
            # `cancel_external` resolves in one turn, so the references start here.
            operations.cancel_external("other", "", "")
            for _ in range(number - 1):
                workflow.sleep(0)
            charge.start(f"turn {number}")

        tasks = [workflow.spawn(subject)]
        workflow.sleep(0)
        workflow.sleep(0)
        tasks += [workflow.spawn(reference, number) for number in range(1, MAX_TURNS + 1)]
        workflow.gather(*tasks)

    d = begin_run(run)
    if events := before(d):
        d.send(*events)
    taken = 1 if kind == "external cancel" else 0
    reference_starts: list[AnyEvent] = [
        ExternalCancelResolved(number + taken) for number in range(1, MAX_TURNS + 1)
    ]
    order = [word for word in brief(d.send(*answer(d), *reference_starts)) if word.startswith("charge(")]
    assert order.index("charge(subject)") + 1 == turns, order
    assert [word for word in order if "turn" in word] == [
        f"charge(turn {n})" for n in range(1, MAX_TURNS + 1)
    ]


@pytest.mark.parametrize("events", [["signal", "activity"], ["activity", "signal"]])
def test_signal_handler_runs_before_other_events_of_the_activation(
    begin_run: Drive, events: list[str]
) -> None:
    @workflow.defn
    class SignalAndActivity:
        @workflow.run
        def run(self) -> None:
            charge("first")
            charge.start("body")
            workflow.sleep(99)

        @workflow.signal
        def poke(self) -> None:
            for _ in range(5):
                workflow.sleep(0)
            charge.start("handler")

    d = begin_run(SignalAndActivity)
    events_by_name: dict[str, AnyEvent] = {"signal": signal("poke"), "activity": d.done("charge", "")}
    assert brief(d.send(*[events_by_name[name] for name in events]))[:2] == [
        "charge(handler)",
        "charge(body)",
    ]


def test_conditions_are_checked_only_when_no_fiber_is_ready(drive: Drive) -> None:
    @workflow.defn
    def run() -> None:
        box: list[int] = []

        def waits() -> None:
            workflow.wait_condition(lambda: box)
            charge.start("condition")

        def long() -> None:
            box.append(1)
            for _ in range(9):
                workflow.sleep(0)
            charge.start("long")

        workflow.gather(workflow.spawn(waits), workflow.spawn(long))

    assert brief(drive(run).begin())[:2] == ["charge(long)", "charge(condition)"]


def test_spawned_tasks_begin_before_the_tasks_that_they_spawn(drive: Drive) -> None:
    @workflow.defn
    def run() -> None:
        def inner(name: str) -> None:
            charge.start(name)

        def outer(name: str) -> None:
            workflow.spawn(inner, name + "1")
            charge.start(name)

        workflow.spawn(outer, "a")
        workflow.spawn(outer, "b")
        workflow.sleep(1)

    words = [word for word in brief(drive(run).begin()) if word.startswith("charge")]
    assert words == ["charge(a)", "charge(b)", "charge(a1)", "charge(b1)"]
