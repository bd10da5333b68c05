"""A run that is dropped is gone at once: where it ended, or stood in the usual places, nothing waits for the collector."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hourglass import workflow
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.messages import Handlers
from hourglass._evaluator.scheduler import Future, Scheduler

from .acts import charge, work
from .conftest import Drive
from .driver import Driver, signal


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """The garbage collector does not come."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[str]:
    """What runs are made of, as far as it is alive."""
    kinds = (LiveRun, Scheduler, Handlers, Future)
    return sorted(type(each).__name__ for each in gc.get_objects() if isinstance(each, kinds))


@workflow.defn
def in_a_row() -> str:
    """One activity after another."""
    return str(charge("a")) + str(charge("b"))


@workflow.defn
def waits_for_activity() -> None:
    """Stands in an activity."""
    work("a")


@workflow.defn
def waits_for_time() -> None:
    """Stands in a timer, within a limit and a scope."""
    with workflow.timeout(10), workflow.scope():
        workflow.sleep(5)


@workflow.defn
def waits_for_condition() -> None:
    """Stands in a condition."""
    flag: list[int] = []
    workflow.wait_condition(lambda: bool(flag), timeout=5)


@workflow.defn
def waits_for_many() -> None:
    """Stands in spawned fibers and started activities."""
    tasks = [workflow.spawn(work, "a"), work.start("b"), workflow.spawn(workflow.sleep, 3)]
    for task in tasks:
        task.result()


@workflow.defn
class Listens:
    """Stands in the body and in a handler."""

    @workflow.run
    def run(self) -> None:
        """Waits."""
        workflow.sleep(5)

    @workflow.signal
    def go(self) -> None:
        """Waits too."""
        work("a")


def stand(drive: Drive, function: Any) -> Driver:
    """A run that has begun and waits."""
    d = drive(function)
    d.begin()
    return d


def closed(drive: Drive) -> Driver:
    """A run that has returned."""
    d = stand(drive, in_a_row)
    d.send(d.done("charge", "x"))
    d.send(d.done("charge", "y"))
    assert d.result == "xy"
    return d


def signalled(drive: Drive) -> Driver:
    """A run whose handler waits."""
    d = stand(drive, Listens)
    d.send(signal("go"))
    return d


@pytest.mark.parametrize(
    "make",
    [
        closed,
        signalled,
        lambda drive: stand(drive, waits_for_activity),
        lambda drive: stand(drive, waits_for_time),
        lambda drive: stand(drive, waits_for_condition),
        lambda drive: stand(drive, waits_for_many),
    ],
    ids=["closed", "in a handler", "in an activity", "in a timer", "in a condition", "in many things"],
)
def test_dropped_run_leaves_no_garbage_cycles(drive: Drive, make: Callable[[Drive], Driver]) -> None:
    """Its parts refer to each other in circles while it lives, and no more once it is dropped."""
    before = left()
    driver = make(drive)
    assert left() != before
    driver.run.drop()
    del driver
    assert left() == before
