"""Determinism checked by re-execution: injected faults are found, and the report names file and line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import NondeterminismError

from .acts import charge, work
from .conftest import Drive
from .driver import run_settings, verify

ticks = itertools.count()
flags: list[bool] = []


@workflow.defn
def global_counter() -> None:
    """Asks for another thing each time it is executed."""
    charge("a")
    work(f"tick {next(ticks)}")  # the fault


@workflow.defn
def changed_duration() -> None:
    """Sleeps another time when executed again."""
    charge("a")
    workflow.sleep(1 + next(ticks))  # the fault


@workflow.defn
def set_order() -> None:
    """Walks a set of objects in the order of their addresses."""
    charge("a")
    flip = next(ticks) % 2
    for name in sorted({"x", "y"}, reverse=bool(flip)):
        work.start(name)  # the fault


@workflow.defn
def fewer() -> None:
    """Does something only once."""
    charge("a")
    if not flags:
        flags.append(True)
        work.start("only once")  # the fault
    workflow.sleep(5)


@workflow.defn
def another_result() -> int:
    """Returns something else."""
    charge("a")
    return next(ticks)  # the fault


@workflow.defn
def raises_later() -> None:
    """Raises when executed again."""
    charge("a")
    if next(ticks) > 100:
        raise ValueError("only the second time")
    workflow.sleep(5)


FAULTY: list[Any] = [global_counter, changed_duration, set_order, fewer, another_result]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Each test begins with the same outside world."""
    global ticks
    ticks = itertools.count()
    flags.clear()


def line_of_the_fault(fn: Any) -> int:
    """The line that the report must name."""
    lines = Path(__file__).read_text().splitlines()
    first = fn.fn.__code__.co_firstlineno
    return next(n for n in range(first, len(lines)) if "# the fault" in lines[n - 1])


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda w: w.name)
def test_verify_finds_an_injected_difference(drive: Drive, faulty: Any) -> None:
    """The report has the expected command, the actual one, and the place."""
    d = drive(faulty, shadow=False)
    d.begin()
    assert verify(d.run) is None
    d.send(d.done("charge", ""))
    found = verify(d.run)
    assert isinstance(found, NondeterminismError)
    if faulty is not another_result:  # a result has no line of its own: the body has returned
        assert Path(found.file) == Path(__file__)
        assert f"{Path(__file__).name}:{line_of_the_fault(faulty)}" in str(found)
    if faulty not in (another_result, fewer):  # there `line` is where the code stands now: behind the fault
        assert found.line == line_of_the_fault(faulty)


def test_verify_finds_an_exception_of_the_second_execution(drive: Drive) -> None:
    """An exception only in the second execution is nondeterminism too."""
    global ticks
    d = drive(raises_later, shadow=False)
    d.begin()
    d.send(d.done("charge", ""))
    ticks = itertools.count(1000)
    found = verify(d.run)
    assert found is not None
    assert "ValueError" in found.produced


def test_verify_reports_contain_no_payloads(drive: Drive) -> None:
    """Arguments are described only by their sizes."""
    d = drive(global_counter, shadow=False)
    d.begin()
    d.send(d.done("charge", ""))
    found = verify(d.run)
    assert found is not None
    assert "tick" not in str(found)
    assert "bytes" in str(found)


def test_nothing_is_recorded_without_verify(drive: Drive) -> None:
    """Without `verify` nothing is kept for a comparison."""
    d = drive(global_counter, shadow=False, settings=run_settings())
    d.begin()
    d.send(d.done("charge", ""))
    assert verify(d.run) is None


def test_verify_does_not_change_the_run(drive: Drive) -> None:
    """The second execution has no effect on the run."""

    @workflow.defn
    def run() -> str:
        return charge("a") + charge("b")

    d = drive(run)
    d.begin()
    d.send(d.done("charge", "A"))
    for _ in range(3):
        assert verify(d.run) is None
    d.send(d.done("charge", "B"))
    assert d.result == "AB"
