"""Signals, channels and queries of workflow functions and classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import ApplicationError, QueryFailedError

from . import activities
from .scenario import scenario
from .world import World


@dataclass
class Decision:
    by: str
    approved: bool


decisions = workflow.Channel("decision", Decision)


@workflow.defn
def waits_for_two_signals(timeout: float | None) -> list[str]:
    seen: list[str] = []

    @workflow.signal
    def put(item: str) -> None:
        seen.append(item)

    @workflow.query
    def so_far() -> list[str]:
        return seen

    @workflow.query
    def broken() -> None:
        raise LookupError("cannot say")

    try:
        workflow.wait_condition(lambda: len(seen) >= 2, timeout=timeout)
    except TimeoutError:
        seen.append("too late")
    return seen


@scenario()
def wait_condition_sees_changes_of_signal_handlers(world: World) -> None:
    handle = world.start(waits_for_two_signals, None)
    for number, item in enumerate(("a", "b"), 1):
        world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", number)
        handle.signal("put", item)
    assert handle.result(timeout=60) == ["a", "b"]


@scenario()
def wait_condition_cancels_timer_when_met_in_time(world: World) -> None:
    handle = world.start(waits_for_two_signals, 60)
    world.wait_for_event(handle, "TIMER_STARTED")
    handle.signal("put", "a")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    handle.signal("put", "b")
    assert handle.result(timeout=60) == ["a", "b"]


@scenario("loose")
def query_is_answered_by_open_and_closed_runs(world: World) -> None:
    handle = world.start_waiting(waits_for_two_signals, None)
    assert handle.query("so_far") == []
    handle.signal("put", "a")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
    assert handle.query("so_far", result_type=list[str]) == ["a"]
    with pytest.raises(QueryFailedError, match="cannot say"):
        handle.query("broken")
    with pytest.raises(QueryFailedError, match="unknown query 'nonsense'"):
        handle.query("nonsense")
    handle.signal("put", "b")
    assert handle.result(timeout=60) == ["a", "b"]
    assert handle.query("so_far") == ["a", "b"]
    world.start_worker()
    assert handle.query("so_far") == ["a", "b"], "answered from history, by a worker that never saw the run"


@scenario()
def signal_with_start_is_handled_before_workflow_body(world: World) -> None:
    handle = world.start_waiting(waits_for_two_signals, None, start_signal="put", start_signal_args=["first"])
    assert handle.query("so_far") == ["first"]
    handle.signal("put", "b")
    assert handle.result(timeout=60) == ["first", "b"]


@workflow.defn
def receives_decision(timeout: float | None) -> list[Any]:
    try:
        first = decisions.receive(timeout=timeout)
    except TimeoutError:
        return ["nobody"]
    activities.record_call("one is here")
    remaining = decisions.drain()
    return [first, remaining]


@scenario()
def channel_receives_typed_messages_in_order(world: World) -> None:
    handle = world.start_waiting(receives_decision, None)
    handle.signal(decisions, Decision("Ann", True))
    result = handle.result(timeout=60)
    assert result == [{"by": "Ann", "approved": True}, []]


@scenario()
def channel_receives_start_signal_without_starting_timer(world: World) -> None:
    options: dict[str, Any] = {"start_signal": decisions, "start_signal_args": [Decision("Ann", False)]}
    assert world.run(receives_decision, 60, **options) == [{"by": "Ann", "approved": False}, []]


@scenario()
def channel_receive_raises_timeout_error(world: World) -> None:
    assert world.run(receives_decision, 0.05) == ["nobody"]


@workflow.defn
class Cart:
    """A workflow class with every kind of handler."""

    @workflow.init
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.items: list[str] = []
        self.closed = False

    @workflow.run
    def run(self, owner: str) -> str:
        workflow.wait_condition(lambda: self.closed and workflow.all_handlers_finished())
        return f"{self.owner}: {', '.join(self.items)}"

    @workflow.signal
    def add(self, item: str) -> None:
        self.items.append(activities.record_call(item))

    @workflow.signal(name="finish")
    def close(self) -> None:
        self.closed = True

    @workflow.signal(dynamic=True)
    def anything(self, name: str, arguments: list[workflow.RawPayload]) -> None:
        self.items.append(f"{name}={arguments[0].decode(int)}")

    @workflow.query
    def count(self, at_least: int = 0) -> int:
        return max(len(self.items), at_least)


@scenario("loose")
def class_workflow_handles_signals_and_queries_in_methods(world: World) -> None:
    handle = world.start(Cart.run, "Ann")
    handle.signal(Cart.add, "pear")
    world.wait_until(lambda: handle.query(Cart.count) == 1, "a pear in the cart")
    handle.signal("other", 5)
    handle.signal(Cart.close)
    assert handle.result(timeout=60) == "Ann: pear, other=5"
    assert handle.query(Cart.count, 7) == 7


@workflow.defn
def fails_in_signal_handler() -> None:
    @workflow.signal
    def explode(why: str) -> None:
        raise ApplicationError(why, type="Handler")

    workflow.wait_condition(lambda: False)


@scenario()
def signal_handler_error_fails_run(world: World) -> None:
    handle = world.start_waiting(fails_in_signal_handler)
    handle.signal("explode", "bang")
    error = world.failure(handle)
    assert (error.type, error.message) == ("Handler", "bang")


@workflow.defn
def has_no_signal_handler() -> str:
    return activities.opens_gate_and_waits_for_go("begun")


@scenario("loose")
def signal_without_handler_is_ignored(world: World) -> None:
    handle = world.start(has_no_signal_handler)
    activities.wait_for_gate("begun")
    handle.signal("unknown", 1)
    world.wait_for_event(handle, "WORKFLOW_EXECUTION_SIGNALED")
    activities.gate("go").set()
    assert handle.result(timeout=60) == "begun"
