"""What cannot be encoded or decoded, wherever it turns up: arguments, results, details, causes; and what is left of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.errors import ActivityError, ApplicationError, EncodeError, PayloadError

from . import acts
from .scenario import scenario
from .world import World, kinds

LIMIT = 30


class Nothing:
    """Cannot be written as JSON."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


@activity.defn(retry_policy=acts.ONCE)
def gives_nothing() -> Any:
    """A result that cannot travel."""
    return Nothing()


@activity.defn(retry_policy=acts.ONCE)
def beats_nothing() -> str:
    """Details that cannot travel."""
    activity.heartbeat(Nothing())
    return "never"


@activity.defn(retry_policy=acts.ONCE)
def fails_with_nothing() -> None:
    """A failure whose details cannot travel."""
    raise ApplicationError("still told", Nothing(), type="Odd")


@activity.defn(retry_policy=acts.ONCE)
def fails_deeply() -> None:
    """Causes, groups and notes."""
    try:
        raise KeyError("inner")
    except KeyError as error:
        error.add_note("a note")
        raise ExceptionGroup("outer", [ValueError("one")]) from error


@workflow.defn
def asks_for_trouble(what: str) -> list[Any]:
    """Catches what comes of it."""
    calls: dict[str, Any] = {
        "result": gives_nothing,
        "details": beats_nothing,
        "failure": fails_with_nothing,
        "group": fails_deeply,
    }
    try:
        calls[what]()
    except ActivityError as error:
        cause = error.cause
        chain = []
        while cause is not None:
            chain.append([getattr(cause, "type", ""), str(cause)])
            cause = cause.__cause__
        return chain
    return []


@scenario(loud=True)
def a_result_that_cannot_be_written(world: World) -> None:
    """An activity's result that has no JSON form fails the activity, in words."""
    ((kind, words), *_) = world.run(asks_for_trouble, "result")
    assert kind == "EncodeError"
    assert "Nothing" in words


@scenario(loud=True)
def details_that_cannot_be_written(world: World) -> None:
    """So do a heartbeat's details, where they are given."""
    ((kind, words), *_) = world.run(asks_for_trouble, "details")
    assert kind == "EncodeError"
    assert "Nothing" in words


@scenario(loud=True)
def a_failure_whose_details_cannot_be_written(world: World) -> None:
    """A failure is told all the same, without the details that cannot be written."""
    (first, *_) = world.run(asks_for_trouble, "failure")
    assert first[0] == "Odd"
    assert "still told" in first[1]


@scenario(loud=True)
def causes_of_every_kind(world: World) -> None:
    """A group of exceptions with a cause of its own arrives as what it is, with the cause."""
    chain = world.run(asks_for_trouble, "group")
    assert [kind for kind, _ in chain] == ["ExceptionGroup", "KeyError"]


@workflow.defn
def sends_nothing(where: str) -> str:
    """An argument that cannot travel is an error where it is given, before anything is asked for."""
    tries: dict[str, Any] = {
        "activity": lambda: shows(Nothing()),
        "named": lambda: workflow.execute_activity("shows", Nothing()),
        "child": lambda: takes(Nothing()),
        "memo": lambda: workflow.upsert_memo({"a": Nothing()}),
        "continue": lambda: workflow.continue_as_new(Nothing()),
        "signal": lambda: workflow.get_external_workflow_handle("x").signal("word", Nothing()),
    }
    try:
        tries[where]()
    except EncodeError:
        return "refused"
    return "sent"


@activity.defn
def shows(value: Any) -> Any:
    """Shows it."""
    return value


@workflow.defn
def takes(value: Any) -> Any:
    """Takes it."""
    return value


@scenario()
def arguments_that_cannot_be_written(world: World) -> None:
    """Nothing is sent: the workflow gets the error, may catch it, and completes; no half of a command is left."""
    for where in ("activity", "named", "child", "memo", "continue", "signal"):
        handle = world.start(sends_nothing, where)
        assert handle.result(timeout=LIMIT) == "refused", where
        assert len(kinds(handle.history())) == 5


@scenario()
def a_client_that_sends_what_cannot_be_written(world: World) -> None:
    """A start, a signal or a memo that has no JSON form is refused before anything is sent."""
    options: Any = {"id": f"{world.queue}-x", "task_queue": world.queue}
    with pytest.raises(PayloadError):
        world.client.start_workflow(takes, Nothing(), **options)
    with pytest.raises(PayloadError):
        world.client.start_workflow(takes, 1, memo={"a": Nothing()}, **options)
    assert world.run(takes, 1) == 1


@workflow.defn(failure_exceptions=[Exception])
def fails_on_anything(number: int) -> int:
    """Every exception fails it."""
    return number


@scenario()
def a_bad_argument_that_fails_the_run(world: World) -> None:
    """Where every exception fails the run, an argument that does not fit its type does."""
    error = world.fails("fails_on_anything", {"not": "a number"})
    assert isinstance(error, ApplicationError)
    assert error.type == "ArgumentError"


@workflow.defn(failure_exceptions=[LookupError])
def fails_on_some(where: str) -> str:
    """Some exceptions fail it, wherever they are raised."""

    @workflow.signal
    def breaks() -> None:
        raise LookupError("in a handler")

    @workflow.update
    def breaks_too() -> None:
        workflow.sleep(0.01)
        raise IndexError("in an update")

    if where == "body":
        raise KeyError("in the body")
    workflow.wait_condition(lambda: False)
    return "never"


@scenario("loose")
def listed_exceptions_fail_the_run_wherever_they_are(world: World) -> None:
    """An exception that the workflow lists, or a kind of it, fails the run from the body and from a signal's handler, and an
    update from its own.
    """
    assert world.fails(fails_on_some, "body").type == "KeyError"
    handle = world.start(fails_on_some, "signal")
    handle.signal("breaks")
    assert world.failure(handle).type == "LookupError"
    handle = world.start(fails_on_some, "update")
    with pytest.raises(Exception, match="in an update"):
        handle.execute_update("breaks_too")
    handle.terminate("seen")
