"""The evaluator: an event costs the same in a small run and in one four times as large."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass._evaluator.verify import verify_run

from . import shapes
from .counting import LARGE, SMALL, Work, assert_flat
from .pump import Pump, numbers, run_of


def whole(workflow: Any, at_a_time: int = 1) -> Any:
    """Work to count: a run from its start to its end, all that it asks for answered so many at a time."""

    def work(size: int) -> int:
        run = run_of(workflow)
        pump = Pump(run.activate, workflow, size)
        pump.begin()
        pump.finish(at_a_time)
        run.drop()
        return max(pump.events, size)

    return work


@pytest.mark.parametrize("at_a_time", [1, 40])
@pytest.mark.parametrize(
    "workflow", [shapes.acting, shapes.sleeping, shapes.mapped, shapes.sequence, shapes.four_ways]
)
def test_activity_and_timer_cost_is_constant(workflow: Any, at_a_time: int) -> None:
    """Answers that come one by one, or many together, to one fiber or to hundreds."""
    assert_flat(whole(workflow, at_a_time))


@pytest.mark.parametrize("workflow", [shapes.in_line, shapes.conditions])
def test_cost_of_waiting_fibers_is_constant(workflow: Any) -> None:
    """A fiber that waits for an event, a lock, a queue or a condition, however many others do."""

    def work(size: int) -> int:
        run = run_of(workflow)
        pump = Pump(run.activate, workflow, size)
        pump.begin()
        pump.send(numbers(1))
        assert pump.closed
        run.drop()
        return size

    assert_flat(work)


@pytest.mark.parametrize("workflow", [shapes.reader, shapes.receivers, shapes.Handler])
@pytest.mark.parametrize("way", ["before", "together", "one by one"])
def test_signal_cost_is_constant(workflow: Any, way: str) -> None:
    """Signals to a channel or a handler: with the start, later all together, or each by itself."""

    def work(size: int) -> int:
        run = run_of(workflow)
        pump = Pump(run.activate, workflow, size)
        signals = numbers(size)
        if way == "before":
            pump.begin(*signals)
        else:
            pump.begin()
            for group in [signals] if way == "together" else [[each] for each in signals]:
                pump.send(group)
        assert pump.result == size
        run.drop()
        return pump.events

    assert_flat(work)


def test_cost_of_receive_timeouts_is_constant() -> None:
    """Fibers that wait for a message in vain, one after the other."""
    assert_flat(whole(shapes.impatient))


def test_unread_failures_add_no_cost() -> None:
    """A thousand fibers that failed are not looked through after every activation."""
    assert_flat(whole(shapes.left_alone))


def test_cost_of_a_chain_of_fibers_is_constant() -> None:
    """A fiber's path does not grow with the number of its predecessors."""
    assert_flat(whole(shapes.relay))


def test_command_ids_of_successive_fibers_stay_short() -> None:
    """Each of many generations asks under a name of its own."""
    run = run_of(shapes.relay)
    pump = Pump(run.activate, shapes.relay, 200)
    pump.begin()
    pump.finish()
    asked = run.state.command_id_to_seq
    assert len(asked) == 200
    assert max(len(path) for path, _ in asked) <= 40


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence])
def test_cost_of_a_replayed_activation_is_constant(workflow: Any) -> None:
    """Also when it is compared."""

    def work(size: int) -> int:
        run = run_of(workflow, verify=True)
        pump = Pump(run.activate, workflow, size)
        pump.begin()
        pump.finish(5)
        assert verify_run(run) is None
        run.drop()
        run.rebuild()
        run.drop()
        return pump.events

    assert_flat(work)


def test_cost_of_dropping_a_run_is_linear() -> None:
    """Fibers that wait are unwound one by one, and each is told."""

    def work(size: int) -> int:
        run = run_of(shapes.acting)
        Pump(run.activate, shapes.acting, size).begin()
        steps: list[None] = []
        run.on_step = lambda: steps.append(None)
        run.drop()
        assert len(steps) == size + 1
        return size

    assert_flat(work)


def test_conditions_are_checked_once_per_event() -> None:
    """What thousands of conditions cost is the call of each: that they are called is Temporal's order, and cannot be saved."""
    asked = 0

    def cost(size: int) -> int:
        nonlocal asked
        run = run_of(shapes.conditions)
        pump = Pump(run.activate, shapes.conditions, size)
        pump.begin()
        live = run.live
        assert live is not None
        with Work() as done:
            live.scheduler.check_conditions()
        asked = len(live.scheduler.conditions)
        run.drop()
        return done.count

    small, large = cost(SMALL), cost(LARGE)
    assert asked == LARGE
    assert large - small <= 6 * (LARGE - SMALL)
