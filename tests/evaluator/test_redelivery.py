"""I3 and I4: a redelivered activation has the same completion, and a run never begins in the middle of its history."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.events import ActivityCompleted, QueryReceived, RunEvicted, TimerFired

from .activities import charge
from .conftest import Drive
from .driver import as_bytes, cancel, encode, evaluate, open_run, signal, update


@workflow.defn
class Collector:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    @workflow.run
    def run(self) -> list[int]:
        workflow.wait_condition(lambda: len(self.numbers) >= 3)
        charge("x")
        return self.numbers

    @workflow.signal
    def add(self, number: int) -> None:
        self.numbers.append(number)

    @workflow.update
    def put(self, number: int) -> int:
        self.numbers.append(number)
        return len(self.numbers)


def deliver_twice(d: Any, *events: Any) -> None:
    """Deliver the activation of these events twice and compare the completions."""
    activation = d.activation(*events)
    first = d.run.activate(activation)
    journal = len(d.run.state.journal)
    again = d.run.activate(activation)
    assert as_bytes(again) == as_bytes(first)
    assert len(d.run.state.journal) == journal


@pytest.mark.parametrize("drop", [False, True], ids=["live", "dropped"])
def test_redelivered_activation_has_the_same_completion(drive: Drive, drop: bool) -> None:
    """Signals and updates are not applied again."""
    d = drive(Collector)
    deliver_twice(d, d.started, signal("add", 1))
    if drop:
        d.run.drop()
    deliver_twice(d, signal("add", 2))
    deliver_twice(d, update("put", 3))
    d.run.activate(d.activation(ActivityCompleted(1, encode(""))))
    assert d.run.state.result is not None
    assert d.run.state.result.result == encode([1, 2, 3])  # type: ignore[union-attr]


def test_redelivered_last_activation_of_a_closed_run_has_the_same_completion(drive: Drive) -> None:
    d = drive(Collector)
    d.begin(signal("add", 1), signal("add", 2), signal("add", 3))
    activation = d.activation(d.done("charge", ""))
    first = d.run.activate(activation)
    d.run.drop()
    assert as_bytes(d.run.activate(activation)) == as_bytes(first)


def test_activation_redelivered_on_another_lane_is_not_applied_twice(drive: Drive) -> None:
    d = drive(Collector)
    d.begin(signal("add", 1))
    activation = d.activation(signal("add", 2))
    first = d.run.activate(activation)
    d.run.drop()
    other = open_run(d.definition, d.run.state)
    again = other.activate(activation)
    other.drop()
    assert as_bytes(again) == as_bytes(first)
    assert len(other.state.journal) == 2


@pytest.mark.parametrize(
    "event", [TimerFired(1), signal("add", 1), cancel(), ActivityCompleted(1), update("put", 1)]
)
def test_activation_without_a_start_fails_the_task(drive: Drive, event: Any) -> None:
    """The engine then sends the whole history."""
    d = drive(Collector)
    completion = d.run.activate(d.activation(event))
    assert isinstance(completion, TaskFailed)
    assert "has not been started" in completion.failure.message
    assert d.run.state.journal == []


def test_query_does_not_begin_a_run(drive: Drive) -> None:
    d = drive(Collector)
    completion = d.run.activate(d.activation(QueryReceived("q", "anything")))
    if isinstance(completion, Succeeded):
        assert completion.commands[0].failure is not None  # type: ignore[attr-defined]
    assert d.run.state.journal == []


def test_failed_activation_is_not_added_to_the_journal(begin_run: Drive) -> None:
    d = begin_run(Collector)
    journal = list(d.run.state.journal)
    assert isinstance(d.run.activate(d.activation(ActivityCompleted(77))), TaskFailed)
    assert d.run.state.journal == journal
    d.send(signal("add", 1))
    assert len(d.run.state.journal) == 2


def test_query_or_eviction_together_with_other_events_fails_the_task(drive: Drive) -> None:
    for forbidden in (RunEvicted(), QueryReceived("q", "x")):
        d = drive(Collector)
        assert isinstance(d.offer(d.started, forbidden), TaskFailed)


def test_closed_run_rebuilt_from_its_journal_issues_no_commands(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        workflow.spawn(lambda: (charge("side"), charge("side again")))
        workflow.sleep(0)
        return "done"

    d = begin_run(run, shadow=False)
    _, completion = evaluate(d.definition, d.run.state, d.activation(ActivityCompleted(1, encode(""))))
    assert completion == Succeeded("run-1")
