"""Signals, channels and queries, to functions and to classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import ApplicationError, QueryFailedError

from . import acts
from .scenario import scenario
from .world import World


@dataclass
class Decision:
    by: str
    approved: bool


decisions = workflow.Channel("decision", Decision)


@workflow.defn
def waits_for_signal(timeout: float | None) -> list[str]:
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
def condition_and_signals(world: World) -> None:
    """A condition on what handlers of a function's own collect; the second signal lets it through."""
    handle = world.start(waits_for_signal, None)
    for number, item in enumerate(("a", "b"), 1):
        world.until(handle, "WORKFLOW_TASK_COMPLETED", number)
        handle.signal("put", item)
    assert handle.result(timeout=60) == ["a", "b"]


@scenario()
def condition_within_timeout(world: World) -> None:
    """The condition holds in time: its timer is cancelled."""
    handle = world.start(waits_for_signal, 60)
    world.until(handle, "TIMER_STARTED")
    handle.signal("put", "a")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    handle.signal("put", "b")
    assert handle.result(timeout=60) == ["a", "b"]


@scenario()
def condition_times_out(world: World) -> None:
    """The condition does not hold in time: TimeoutError, caught by the workflow."""
    assert world.run(waits_for_signal, 0.05) == ["too late"]


@scenario("loose")
def queries_open_and_closed(world: World) -> None:
    """A query is answered while the run is open and after it has closed; a handler that raises tells the asker."""
    handle = world.start(waits_for_signal, None)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    assert handle.query("so_far") == []
    handle.signal("put", "a")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
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
def signal_with_start(world: World) -> None:
    """A signal that comes with the start is there before the body begins."""
    handle = world.start(waits_for_signal, None, start_signal="put", start_signal_args=["first"])
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    assert handle.query("so_far") == ["first"]
    handle.signal("put", "b")
    assert handle.result(timeout=60) == ["first", "b"]


@workflow.defn
def decides(timeout: float | None) -> list[Any]:
    try:
        first = decisions.receive(timeout=timeout)
    except TimeoutError:
        return ["nobody"]
    acts.note("one is here")
    rest = decisions.drain()
    return [first, rest]


@scenario()
def channel_receives(world: World) -> None:
    """Messages wait in order for whoever receives, typed."""
    handle = world.start(decides, None)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal(decisions, Decision("Ann", True))
    result = handle.result(timeout=60)
    assert result == [{"by": "Ann", "approved": True}, []]


@scenario()
def channel_before_start(world: World) -> None:
    """A message that comes with the start is received at once, and its timer never starts."""
    given: dict[str, Any] = {"start_signal": decisions, "start_signal_args": [Decision("Ann", False)]}
    assert world.run(decides, 60, **given) == [{"by": "Ann", "approved": False}, []]


@scenario()
def channel_times_out(world: World) -> None:
    """Nobody sends: TimeoutError after the time."""
    assert world.run(decides, 0.05) == ["nobody"]


@workflow.defn
class Cart:
    """The class style."""

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
        self.items.append(acts.note(item))

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
def class_style(world: World) -> None:
    """Handlers as methods: one that calls an activity, a named one, the dynamic one, a query with an argument."""
    handle = world.start(Cart.run, "Ann")
    handle.signal(Cart.add, "pear")
    world.until_true(lambda: handle.query(Cart.count) == 1, "a pear in the cart")
    handle.signal("other", 5)
    handle.signal(Cart.close)
    assert handle.result(timeout=60) == "Ann: pear, other=5"
    assert handle.query(Cart.count, 7) == 7


@workflow.defn
def fails_in_handler() -> None:
    @workflow.signal
    def explode(why: str) -> None:
        raise ApplicationError(why, type="Handler")

    workflow.wait_condition(lambda: False)


@scenario()
def handler_fails_the_run(world: World) -> None:
    """A failure that a signal's handler lets out fails the run."""
    handle = world.start(fails_in_handler)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal("explode", "bang")
    error = world.failure(handle)
    assert (error.type, error.message) == ("Handler", "bang")


@workflow.defn
def never_listens() -> str:
    return acts.passes("begun")


@scenario("loose")
def signals_nobody_wants(world: World) -> None:
    """A signal without a handler does no harm."""
    handle = world.start(never_listens)
    acts.arrived("begun")
    handle.signal("unknown", 1)
    world.until(handle, "WORKFLOW_EXECUTION_SIGNALED")
    acts.gate("go").set()
    assert handle.result(timeout=60) == "begun"


@workflow.defn
def counts_burst(wanted: int) -> list[int]:
    numbers = workflow.Channel("number", int)
    return [numbers.receive() for _ in range(wanted)]


@scenario("loose")
def burst_of_signals(world: World) -> None:
    """Fifty signals arrive once each and in order."""
    handle = world.start(counts_burst, 50)
    for number in range(50):
        handle.signal("number", number)
    assert handle.result(timeout=60) == list(range(50))
