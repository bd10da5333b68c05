"""Memory of a dropped run: it is freed by reference counting, without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from hourglass import workflow
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.messages import Handlers
from hourglass._evaluator.scheduler import Future, Scheduler

from .activities import charge, work
from .conftest import Drive
from .driver import Driver, signal


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Disable the garbage collector during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def live_parts() -> list[str]:
    """Return the names of the living parts of runs."""
    kinds = (LiveRun, Scheduler, Handlers, Future)
    return sorted(type(part).__name__ for part in gc.get_objects() if isinstance(part, kinds))


@workflow.defn
def two_activities() -> str:
    return str(charge("a")) + str(charge("b"))


@workflow.defn
def waits_for_activity() -> None:
    work("a")


@workflow.defn
def waits_for_time() -> None:
    with workflow.timeout(10), workflow.scope():
        workflow.sleep(5)


@workflow.defn
def waits_for_condition() -> None:
    flag: list[int] = []
    workflow.wait_condition(lambda: bool(flag), timeout=5)


@workflow.defn
def waits_for_many() -> None:
    tasks = [workflow.spawn(work, "a"), work.start("b"), workflow.spawn(workflow.sleep, 3)]
    for task in tasks:
        task.result()


@workflow.defn
class HandlerThatWaits:
    @workflow.run
    def run(self) -> None:
        workflow.sleep(5)

    @workflow.signal
    def go(self) -> None:
        work("a")


def closed_run(begin_run: Drive) -> Driver:
    d = begin_run(two_activities)
    d.send(d.done("charge", "x"))
    d.send(d.done("charge", "y"))
    assert d.result == "xy"
    return d


def run_with_waiting_handler(begin_run: Drive) -> Driver:
    d = begin_run(HandlerThatWaits)
    d.send(signal("go"))
    return d


@pytest.mark.parametrize(
    "make",
    [
        closed_run,
        run_with_waiting_handler,
        lambda begin_run: begin_run(waits_for_activity),
        lambda begin_run: begin_run(waits_for_time),
        lambda begin_run: begin_run(waits_for_condition),
        lambda begin_run: begin_run(waits_for_many),
    ],
    ids=["closed_run", "in a handler", "in an activity", "in a timer", "in a condition", "in several tasks"],
)
def test_dropped_run_leaves_no_reference_cycles(begin_run: Drive, make: Callable[[Drive], Driver]) -> None:
    before = live_parts()
    driver = make(begin_run)
    assert live_parts() != before
    driver.run.drop()
    del driver
    assert live_parts() == before
