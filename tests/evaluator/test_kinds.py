"""I8: every kind of event is handled, and every kind of command is issued by workflow code; `tests/architecture/test_kinds.py`
has the rest.
"""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as ev
from hourglass.converter import CanceledFailure, Failure
from hourglass.errors import ApplicationError, FailureError, ServiceError

from .acts import charge
from .conftest import Drive
from .driver import Driver, cancel, encode, signal, update

CANCELLED = Failure("cancelled", CanceledFailure())


@workflow.defn
class Everything:
    """Does one thing of each kind, as it is told."""

    @workflow.run
    def run(self, what: str) -> Any:
        """One thing."""
        try:
            return getattr(self, what)()
        except (FailureError, ServiceError) as error:
            return type(error).__name__

    def timer(self) -> None:
        """A timer."""
        workflow.sleep(1)

    def activity(self) -> Any:
        """An activity, after a patch."""
        workflow.patched("p")
        return charge("a")

    def local(self) -> Any:
        """A local activity."""
        return charge.local("a")

    def note(self) -> None:
        """Notes for those who look."""
        workflow.upsert_memo({"a": 1})
        workflow.upsert_search_attributes({"Region": "eu"})

    def child(self) -> Any:
        """A child."""
        return workflow.execute_child_workflow("c", id="c", result_type=str)

    def operation(self) -> Any:
        """A Nexus operation."""
        return workflow.create_nexus_client("bank", endpoint="e").execute_operation("pay", 1, result_type=str)

    def tell(self) -> None:
        """A signal to another workflow."""
        workflow.get_external_workflow_handle("o").signal("s")

    def stop_other(self) -> None:
        """A request to cancel another workflow."""
        workflow.get_external_workflow_handle("o").cancel()

    def fail(self) -> None:
        """A failure that gets out."""
        raise SystemError

    def again(self) -> None:
        """The next run."""
        workflow.continue_as_new("timer")

    @workflow.signal
    def broken(self) -> None:
        """Fails the run."""
        raise ApplicationError("no")

    @workflow.update
    def change(self, well: bool) -> None:
        """Changes nothing."""
        if not well:
            raise ApplicationError("no")

    @workflow.query
    def ask(self) -> str:
        """Answers."""
        return "answer"


def case(what: str, *activations: list[ev.AnyEvent]) -> tuple[str, tuple[list[ev.AnyEvent], ...]]:
    """What the workflow does, and the activations after the first."""
    return what, activations


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
    "local activity pauses": case("local", [ev.ActivityBackedOff(1, 2, 60.0, 1)], [ev.TimerFired(1)]),
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
    "told": case("tell", [ev.ExternalSignalResolved(1)]),
    "not told": case("tell", [ev.ExternalSignalResolved(1, FAILURE)]),
    "told no more": case("tell", [cancel()], [ev.ExternalSignalResolved(1, CANCELLED)]),
    "stopped": case("stop_other", [ev.ExternalCancelResolved(1)]),
    "continued": case("again"),
    "noted": case("note"),
    "failed": case("timer", [signal("broken")]),
    "updated": case("timer", [update("change", True)], [update("change", False, id="2")]),
}


def play(d: Driver, activations: tuple[list[ev.AnyEvent], ...]) -> tuple[set[type], set[type]]:
    """Drive a case; returns the kinds of events that were handled and of commands that were issued."""
    issued = {type(command) for command in d.begin()}
    handled: set[type] = {ev.RunStarted, ev.QueryReceived}
    for events in activations:
        d.owed.clear()
        issued |= {type(command) for command in d.send(*events)}
        handled |= {type(event) for event in events}
    issued.add(type(d.ask("ask")))
    return handled, issued


@pytest.mark.parametrize("name", CASES)
def test_every_example_is_handled(drive: Drive, name: str) -> None:
    """Each example goes through without a failed task, and with the same bytes when it is executed again."""
    what, activations = CASES[name]
    play(drive(Everything, what), activations)


def test_examples_cover_every_kind(drive: Drive) -> None:
    """Together the examples meet every kind of event, and issue every kind of command that authors can ask for."""
    handled: set[type] = set()
    issued: set[type] = set()
    for what, activations in CASES.values():
        more_handled, more_issued = play(drive(Everything, what), activations)
        handled |= more_handled
        issued |= more_issued
    missed = set(ev.EVENTS) - handled
    assert missed == {ev.RunEvicted}, "an event wants a case in CASES; evictions are answered by the runtime"
    assert set(c.COMMANDS) == issued, (
        "a command that authors can ask for wants a method of Everything and a case in CASES"
    )
