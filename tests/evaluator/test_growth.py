"""Nothing grows but the journal, and the journal by what happened: counts from 10 to 3,000 steps, no clock."""

from __future__ import annotations

import msgspec
import pytest

from hourglass import workflow

from .acts import work
from .conftest import Drive
from .driver import Driver, run_settings


@workflow.defn
def steps(count: int) -> None:
    """So many activities, one after the other."""
    for _ in range(count):
        work("step")


def size_of_an_activation(d: Driver) -> float:
    """Bytes of journal for each activation."""
    return len(msgspec.msgpack.encode(d.run.state.journal)) / len(d.run.state.journal)


@pytest.mark.parametrize("count", [10, 300, 3000])
def test_journal_grows_by_a_constant(drive: Drive, count: int) -> None:
    """An activation costs the same bytes early and late."""
    d = drive(steps, count, shadow=False, settings=run_settings())
    d.begin()
    for _ in range(count):
        d.send(d.done("work", None))
    assert d.result is None
    assert len(d.run.state.journal) == count + 1
    print(f"{count} steps: {size_of_an_activation(d):.0f} bytes of journal an activation")
    assert size_of_an_activation(d) < 300


def test_work_grows_with_events_and_commands(drive: Drive) -> None:
    """The estimate by which a worker decides whether executing a run again is expensive counts both."""
    d = drive(steps, 3)
    d.begin()
    for _ in range(3):
        before = d.run.work
        commands = d.send(d.done("work", None))
        assert d.run.work == before + 1 + len(commands)


def test_resumed_activation_executes_code_once(drive: Drive) -> None:
    """With live fibers each step of the workflow's code runs once, however many activations there are."""
    executed: list[int] = []

    @workflow.defn
    def run() -> None:
        for number in range(200):
            executed.append(number)
            work("step")

    d = drive(run, shadow=False, settings=run_settings())
    d.begin()
    for _ in range(200):
        d.send(d.done("work"))
    assert executed == list(range(200))


def test_long_run_keeps_no_finished_fibers(drive: Drive) -> None:
    """Fibers that ended, timers that fired and conditions that held are forgotten."""

    @workflow.defn
    def run() -> None:
        for _ in range(100):
            workflow.spawn(work, "side").result()
            workflow.wait_condition(lambda: True, timeout=5)
            with workflow.scope():
                workflow.sleep(1)

    d = drive(run, shadow=False, settings=run_settings())
    d.begin()
    live = d.run.live
    assert live is not None
    for _ in range(60):
        d.send(d.done("work", None) if d.activities else d.fired())
        assert len(live.fibers) <= 2
        assert len(live.pending) <= 2
        assert len(live.scheduler.conditions) <= 1
    assert len(d.run.state.pending_resolvers) <= 2
