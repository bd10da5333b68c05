"""Cost of an event in the evaluator: the same in a small run and in one four times as large."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation
from hourglass._evaluator.state import CommandId
from hourglass._evaluator.verify import verify_run

from . import shapes
from .counting import LARGE, SMALL, Work, assert_flat
from .pump import Pump, numbers, run_of


def execution(workflow: Any, at_a_time: int = 1) -> Any:
    """Return a function that executes a run and answers `at_a_time` of its commands per activation."""

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
    assert_flat(execution(workflow, at_a_time))


@pytest.mark.parametrize("workflow", [shapes.in_line, shapes.conditions])
def test_cost_of_waiting_fibers_is_constant(workflow: Any) -> None:
    """A fiber waits for an event, a lock, a queue or a condition."""

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
    def work(size: int) -> int:
        run = run_of(workflow)
        pump = Pump(run.activate, workflow, size)
        signals = numbers(size)
        if way == "before":
            pump.begin(*signals)
        else:
            pump.begin()
            for group in [signals] if way == "together" else [[signal] for signal in signals]:
                pump.send(group)
        assert pump.result == size
        run.drop()
        return pump.events

    assert_flat(work)


def test_cost_of_receive_timeouts_is_constant() -> None:
    assert_flat(execution(shapes.impatient))


def test_unread_failures_of_fibers_add_no_cost() -> None:
    """The failed fibers are not scanned after every activation."""
    assert_flat(execution(shapes.left_alone))


def test_cost_of_a_chain_of_fibers_is_constant() -> None:
    """A fiber's path does not grow with the number of its predecessors."""
    assert_flat(execution(shapes.relay))


def test_command_ids_of_successive_fibers_stay_short() -> None:
    run = run_of(shapes.relay)
    command_ids: set[CommandId] = set()

    def activate(activation: Activation) -> Completion:
        completion = run.activate(activation)
        command_ids.update(command_id for command_id, command in run.state.commands)
        return completion

    pump = Pump(activate, shapes.relay, 200)
    pump.begin()
    pump.finish()
    assert len(command_ids) == 201  # 200 activities and the end of the run
    assert max(len(path) for path, _ in command_ids) <= 40


@pytest.mark.parametrize("workflow", [shapes.acting, shapes.sequence])
def test_cost_of_a_verified_activation_is_constant(workflow: Any) -> None:
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
    """Temporal's order requires a call of each condition, but no further cost."""
    checked = 0

    def cost(size: int) -> int:
        nonlocal checked
        run = run_of(shapes.conditions)
        pump = Pump(run.activate, shapes.conditions, size)
        pump.begin()
        live = run.live
        assert live is not None
        with Work() as done:
            live.scheduler.check_conditions()
        checked = len(live.scheduler.conditions)
        run.drop()
        return done.count

    small, large = cost(SMALL), cost(LARGE)
    assert checked == LARGE
    assert large - small <= 6 * (LARGE - SMALL)
