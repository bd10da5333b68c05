"""Memory of a run: only the journal grows, by a constant per activation. Counted for 10 to 3,000 steps."""

from __future__ import annotations

import msgspec
import pytest

from hourglass import workflow

from .activities import work
from .conftest import Drive
from .driver import Driver, run_settings


@workflow.defn
def many_activities(count: int) -> None:
    for _ in range(count):
        work("step")


def bytes_per_activation(d: Driver) -> float:
    """Return the average size of an activation in the journal."""
    return len(msgspec.msgpack.encode(d.run.state.journal)) / len(d.run.state.journal)


@pytest.mark.parametrize("count", [10, 300, 3000])
def test_journal_grows_by_a_constant_per_activation(begin_run: Drive, count: int) -> None:
    d = begin_run(many_activities, count, shadow=False, settings=run_settings())
    for _ in range(count):
        d.send(d.done("work", None))
    assert d.result is None
    assert len(d.run.state.journal) == count + 1
    print(f"{count} steps: {bytes_per_activation(d):.0f} bytes of journal per activation")
    assert bytes_per_activation(d) < 300


def test_work_estimate_counts_events_and_commands(begin_run: Drive) -> None:
    """A worker decides by this estimate whether re-execution of a run is expensive."""
    d = begin_run(many_activities, 3)
    for _ in range(3):
        before = d.run.work
        commands = d.send(d.done("work", None))
        assert d.run.work == before + 1 + len(commands)


def test_live_fibers_execute_workflow_code_once(begin_run: Drive) -> None:
    executed: list[int] = []

    @workflow.defn
    def run() -> None:
        for number in range(200):
            executed.append(number)
            work("step")

    d = begin_run(run, shadow=False, settings=run_settings())
    for _ in range(200):
        d.send(d.done("work"))
    assert executed == list(range(200))


def test_long_run_keeps_no_finished_fibers_timers_or_conditions(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> None:
        for _ in range(100):
            workflow.spawn(work, "side").result()
            workflow.wait_condition(lambda: True, timeout=5)
            with workflow.scope():
                workflow.sleep(1)

    d = begin_run(run, shadow=False, settings=run_settings())
    live = d.run.live
    assert live is not None
    for _ in range(60):
        d.send(d.done("work", None) if d.activities else d.fired())
        assert len(live.fibers) <= 2
        assert len(live.pending) <= 2
        assert len(live.scheduler.conditions) <= 1
