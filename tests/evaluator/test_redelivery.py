"""I3 and I4: an activation delivered again is answered the same; a run is never begun from the middle."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.commands import Succeeded, TaskFailed
from hourglass._evaluator.events import ActivityCompleted, QueryReceived, RunEvicted, TimerFired

from .acts import charge
from .conftest import Drive
from .driver import as_bytes, cancel, encode, evaluate, open_run, signal, update


@workflow.defn
class Collector:
    """Collects signals and updates until there are three."""

    def __init__(self) -> None:
        self.got: list[int] = []

    @workflow.run
    def run(self) -> list[int]:
        """Wait, then pay."""
        workflow.wait_condition(lambda: len(self.got) >= 3)
        charge("x")
        return self.got

    @workflow.signal
    def add(self, number: int) -> None:
        """One more."""
        self.got.append(number)

    @workflow.update
    def put(self, number: int) -> int:
        """One more, with an answer."""
        self.got.append(number)
        return len(self.got)


def deliver_twice(d: Any, *events: Any) -> None:
    """Deliver an activation, then the same again."""
    activation = d.activation(*events)
    first = d.run.activate(activation)
    journal = len(d.run.state.journal)
    again = d.run.activate(activation)
    assert as_bytes(again) == as_bytes(first)
    assert len(d.run.state.journal) == journal


@pytest.mark.parametrize("drop", [False, True], ids=["live", "dropped"])
def test_redelivered_activation_has_the_same_completion(drive: Drive, drop: bool) -> None:
    """The same bytes; signals and updates are not repeated."""
    d = drive(Collector)
    deliver_twice(d, d.started, signal("add", 1))
    if drop:
        d.run.drop()
    deliver_twice(d, signal("add", 2))
    deliver_twice(d, update("put", 3))
    d.run.activate(d.activation(ActivityCompleted(1, encode(""))))
    assert d.run.state.result is not None
    assert d.run.state.result.result == encode([1, 2, 3])  # type: ignore[union-attr]


def test_redelivered_last_activation_has_the_same_completion(drive: Drive) -> None:
    """The completion that closed the run is returned again until the run is evicted."""
    d = drive(Collector)
    d.begin(signal("add", 1), signal("add", 2), signal("add", 3))
    activation = d.activation(d.done("charge", ""))
    first = d.run.activate(activation)
    d.run.drop()
    assert as_bytes(d.run.activate(activation)) == as_bytes(first)


def test_redelivery_after_a_change_of_lane(drive: Drive) -> None:
    """The lane is gone, its state is not: a redelivered activation must not count twice."""
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
def test_missing_start_fails_the_task(drive: Drive, event: Any) -> None:
    """A miss is explicit: the task fails, so that the engine sends the whole history."""
    d = drive(Collector)
    completion = d.run.activate(d.activation(event))
    assert isinstance(completion, TaskFailed)
    assert "has not been started" in completion.failure.message
    assert d.run.state.journal == []


def test_query_of_an_unknown_run_fails(drive: Drive) -> None:
    """It fails, as query or as task, and does not begin the run."""
    d = drive(Collector)
    completion = d.run.activate(d.activation(QueryReceived("q", "anything")))
    if isinstance(completion, Succeeded):
        assert completion.commands[0].failure is not None  # type: ignore[attr-defined]
    assert d.run.state.journal == []


def test_failed_activation_is_not_in_the_journal(drive: Drive) -> None:
    """It is not recorded, and the run can be retried."""
    d = drive(Collector)
    d.begin()
    journal = list(d.run.state.journal)
    assert isinstance(d.run.activate(d.activation(ActivityCompleted(77))), TaskFailed)
    assert d.run.state.journal == journal
    d.send(signal("add", 1))
    assert len(d.run.state.journal) == 2


def test_mixed_activations_fail_the_task(drive: Drive) -> None:
    """The protocol forbids queries and evictions with other events."""
    for stranger in (RunEvicted(), QueryReceived("q", "x")):
        d = drive(Collector)
        assert isinstance(d.offer(d.started, stranger), TaskFailed)


def test_closed_run_issues_no_commands_when_evaluated(drive: Drive) -> None:
    """I7 follows from the journal alone."""

    @workflow.defn
    def run() -> str:
        workflow.spawn(lambda: (charge("side"), charge("side again")))
        workflow.sleep(0)
        return "done"

    d = drive(run, shadow=False)
    d.begin()
    _, completion = evaluate(d.definition, d.run.state, d.activation(ActivityCompleted(1, encode(""))))
    assert completion == Succeeded("run-1")
