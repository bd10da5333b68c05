"""Values that cannot be encoded or decoded: arguments, results, details and causes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.errors import ActivityError, ApplicationError, EncodeError, PayloadError

from . import activities
from .scenario import scenario
from .world import LIMIT, World, event_types


class Unserializable:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@activity.defn(retry_policy=activities.ONCE)
def returns_unserializable() -> Any:
    return Unserializable()


@activity.defn(retry_policy=activities.ONCE)
def heartbeats_unserializable() -> str:
    activity.heartbeat(Unserializable())
    return "never"


@activity.defn(retry_policy=activities.ONCE)
def fails_with_unserializable_details() -> None:
    raise ApplicationError("still told", Unserializable(), type="Odd")


@activity.defn(retry_policy=activities.ONCE)
def fails_with_exception_group() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        error.add_note("a note")
        raise ExceptionGroup("outer", [ValueError("one")]) from error


@workflow.defn
def catches_failure_chain(what: str) -> list[Any]:
    calls: dict[str, Any] = {
        "result": returns_unserializable,
        "details": heartbeats_unserializable,
        "failure": fails_with_unserializable_details,
        "group": fails_with_exception_group,
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
def unserializable_activity_result_fails_activity(world: World) -> None:
    ((kind, words), *_) = world.run(catches_failure_chain, "result")
    assert kind == "EncodeError"
    assert "Unserializable" in words


@scenario(loud=True)
def unserializable_heartbeat_details_fail_activity(world: World) -> None:
    ((kind, words), *_) = world.run(catches_failure_chain, "details")
    assert kind == "EncodeError"
    assert "Unserializable" in words


@scenario(loud=True)
def failure_with_unserializable_details_keeps_type_and_message(world: World) -> None:
    (first, *_) = world.run(catches_failure_chain, "failure")
    assert first[0] == "Odd"
    assert "still told" in first[1]


@scenario(loud=True)
def exception_group_with_cause_reaches_workflow(world: World) -> None:
    chain = world.run(catches_failure_chain, "group")
    assert [kind for kind, _ in chain] == ["ExceptionGroup", "KeyError"]


@workflow.defn
def sends_unserializable(where: str) -> str:
    tries: dict[str, Any] = {
        "activity": lambda: echo(Unserializable()),
        "named": lambda: workflow.execute_activity("echo", Unserializable()),
        "child": lambda: takes_value(Unserializable()),
        "memo": lambda: workflow.upsert_memo({"a": Unserializable()}),
        "continue": lambda: workflow.continue_as_new(Unserializable()),
        "signal": lambda: workflow.get_external_workflow_handle("x").signal("word", Unserializable()),
    }
    try:
        tries[where]()
    except EncodeError:
        return "refused"
    return "sent"


@activity.defn
def echo(value: Any) -> Any:
    return value


@workflow.defn
def takes_value(value: Any) -> Any:
    return value


@scenario()
def unserializable_arguments_raise_before_any_command(world: World) -> None:
    for where in ("activity", "named", "child", "memo", "continue", "signal"):
        handle = world.start(sends_unserializable, where)
        assert handle.result(timeout=LIMIT) == "refused", where
        assert len(event_types(handle.history())) == 5


@scenario()
def client_rejects_unserializable_start_and_memo(world: World) -> None:
    options: Any = {"id": f"{world.queue}-x", "task_queue": world.queue}
    with pytest.raises(PayloadError):
        world.client.start_workflow(takes_value, Unserializable(), **options)
    with pytest.raises(PayloadError):
        world.client.start_workflow(takes_value, 1, memo={"a": Unserializable()}, **options)
    assert world.run(takes_value, 1) == 1


@workflow.defn(failure_exceptions=[Exception])
def fails_on_any_exception(number: int) -> int:
    return number


@scenario()
def invalid_argument_fails_run_if_every_exception_does(world: World) -> None:
    error = world.run_failing("fails_on_any_exception", {"not": "a number"})
    assert isinstance(error, ApplicationError)
    assert error.type == "ArgumentError"


@workflow.defn(failure_exceptions=[LookupError])
def fails_on_lookup_errors(where: str) -> str:
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
def failure_exceptions_fail_run_or_update_depending_on_where_raised(world: World) -> None:
    assert world.run_failing(fails_on_lookup_errors, "body").type == "KeyError"
    handle = world.start(fails_on_lookup_errors, "signal")
    handle.signal("breaks")
    assert world.failure(handle).type == "LookupError"
    handle = world.start(fails_on_lookup_errors, "update")
    with pytest.raises(Exception, match="in an update"):
        handle.execute_update("breaks_too")
    handle.terminate("seen")
