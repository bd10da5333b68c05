"""I8: every kind of event is handled, and workflow code can issue every kind of command.

`tests/architecture/test_kinds.py` checks the other parts.
"""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as ev
from hourglass.converter import CanceledFailure, Failure
from hourglass.errors import ApplicationError, FailureError, ServiceError

from .activities import charge
from .conftest import Drive
from .driver import Driver, cancel, encode, signal, update

CANCELLED = Failure("cancelled", CanceledFailure())


@workflow.defn
class EveryCommand:
    """Calls the method that its argument names."""

    @workflow.run
    def run(self, method: str) -> Any:
        try:
            return getattr(self, method)()
        except (FailureError, ServiceError) as error:
            return type(error).__name__

    def timer(self) -> None:
        workflow.sleep(1)

    def activity(self) -> Any:
        workflow.patched("p")
        return charge("a")

    def local(self) -> Any:
        return charge.local("a")

    def upsert(self) -> None:
        workflow.upsert_memo({"a": 1})
        workflow.upsert_search_attributes({"Region": "eu"})

    def child(self) -> Any:
        return workflow.execute_child_workflow("c", id="c", result_type=str)

    def operation(self) -> Any:
        return workflow.create_nexus_client("bank", endpoint="e").execute_operation("pay", 1, result_type=str)

    def signal_other(self) -> None:
        workflow.get_external_workflow_handle("o").signal("s")

    def cancel_other(self) -> None:
        workflow.get_external_workflow_handle("o").cancel()

    def fail(self) -> None:
        raise SystemError

    def continue_as_new(self) -> None:
        workflow.continue_as_new("timer")

    @workflow.signal
    def broken(self) -> None:
        raise ApplicationError("no")

    @workflow.update
    def change(self, succeed: bool) -> None:
        if not succeed:
            raise ApplicationError("no")

    @workflow.query
    def status(self) -> str:
        return "answer"


def case(method: str, *activations: list[ev.AnyEvent]) -> tuple[str, tuple[list[ev.AnyEvent], ...]]:
    """Return the method of the workflow and the activations after the first."""
    return method, activations


FAILURE = Failure("no")
CASES = {
    "timer": case("timer", [ev.TimerFired(1)]),
    "timer cancelled": case("timer", [cancel()]),
    "activity": case("activity", [ev.ActivityCompleted(1, encode("A"))]),
    "activity failed": case("activity", [ev.ActivityFailed(1, FAILURE)]),
    "activity cancelled": case("activity", [cancel()], [ev.ActivityCancelled(1, CANCELLED)]),
    "patch and seed": case(
        "activity", [ev.PatchNoticed("p"), ev.SeedChanged(3), ev.ActivityCompleted(1, encode("A"))]
    ),
    "local activity": case("local", [ev.ActivityCompleted(1, encode("A"), True)]),
    "local activity cancelled": case("local", [cancel()], [ev.ActivityCancelled(1, CANCELLED, True)]),
    "local activity backs off": case("local", [ev.ActivityBackedOff(1, 2, 60.0, 1)], [ev.TimerFired(1)]),
    "child": case("child", [ev.ChildStarted(1, "r")], [ev.ChildCompleted(1, encode("C"))]),
    "child failed": case("child", [ev.ChildStarted(1, "r"), ev.ChildFailed(1, FAILURE)]),
    "child exists": case("child", [ev.ChildStartFailed(1, "c", "c")]),
    "child cancelled": case(
        "child", [ev.ChildStarted(1, "r")], [cancel()], [ev.ChildCancelled(1, CANCELLED)]
    ),
    "child never started": case("child", [ev.ChildStartCancelled(1, CANCELLED)]),
    "operation": case("operation", [ev.NexusStarted(1, "t")], [ev.NexusCompleted(1, encode("N"))]),
    "operation failed": case("operation", [ev.NexusStarted(1), ev.NexusFailed(1, FAILURE)]),
    "operation never started": case("operation", [ev.NexusStartFailed(1, FAILURE)]),
    "operation cancelled": case(
        "operation", [ev.NexusStarted(1, "t")], [cancel()], [ev.NexusFailed(1, CANCELLED)]
    ),
    "signal sent": case("signal_other", [ev.ExternalSignalResolved(1)]),
    "signal failed": case("signal_other", [ev.ExternalSignalResolved(1, FAILURE)]),
    "signal cancelled": case("signal_other", [cancel()], [ev.ExternalSignalResolved(1, CANCELLED)]),
    "external workflow cancelled": case("cancel_other", [ev.ExternalCancelResolved(1)]),
    "continued as new": case("continue_as_new"),
    "memo and search attributes": case("upsert"),
    "run failed": case("timer", [signal("broken")]),
    "updated": case("timer", [update("change", True)], [update("change", False, id="2")]),
}


def play(d: Driver, activations: tuple[list[ev.AnyEvent], ...]) -> tuple[set[type], set[type]]:
    """Drive a case; return the kinds of handled events and of issued commands."""
    issued = {type(command) for command in d.begin()}
    handled: set[type] = {ev.RunStarted, ev.QueryReceived}
    for events in activations:
        d.owed.clear()
        issued |= {type(command) for command in d.send(*events)}
        handled |= {type(event) for event in events}
    issued.add(type(d.answer_query("status")))
    return handled, issued


@pytest.mark.parametrize("name", CASES)
def test_event_and_command_examples_are_handled(drive: Drive, name: str) -> None:
    method, activations = CASES[name]
    play(drive(EveryCommand, method), activations)


def test_examples_cover_every_kind_of_event_and_command(drive: Drive) -> None:
    handled: set[type] = set()
    issued: set[type] = set()
    for method, activations in CASES.values():
        more_handled, more_issued = play(drive(EveryCommand, method), activations)
        handled |= more_handled
        issued |= more_issued
    missed = set(ev.EVENTS) - handled
    assert missed == {ev.RunEvicted}, (
        "add a case to CASES for each new kind of event (evictions are handled by the worker)"
    )
    assert set(c.COMMANDS) == issued, (
        "add a method to EveryCommand and a case to CASES for each new command that workflow code can issue"
    )
