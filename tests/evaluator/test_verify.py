"""Determinism checked by re-execution: detection of injected faults, and reports with file and line."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import NondeterminismError

from .activities import charge, work
from .conftest import Drive
from .driver import run_settings, verify

ticks = itertools.count()
flags: list[bool] = []


@workflow.defn
def global_counter() -> None:
    charge("a")
    work(f"tick {next(ticks)}")  # the fault


@workflow.defn
def changed_duration() -> None:
    charge("a")
    workflow.sleep(1 + next(ticks))  # the fault


@workflow.defn
def set_order() -> None:
    """Iterates over a set of objects in the order of their addresses."""
    charge("a")
    flip = next(ticks) % 2
    for name in sorted({"x", "y"}, reverse=bool(flip)):
        work.start(name)  # the fault


@workflow.defn
def missing_command() -> None:
    charge("a")
    if not flags:
        flags.append(True)
        work.start("only once")  # the fault
    workflow.sleep(5)


@workflow.defn
def changed_result() -> int:
    charge("a")
    return next(ticks)  # the fault


@workflow.defn
def raises_on_re_execution() -> None:
    charge("a")
    if next(ticks) > 100:
        raise ValueError("only the second time")
    workflow.sleep(5)


FAULTY: list[Any] = [global_counter, changed_duration, set_order, missing_command, changed_result]


@pytest.fixture(autouse=True)
def reset_globals() -> None:
    global ticks
    ticks = itertools.count()
    flags.clear()


def line_of_the_fault(fn: Any) -> int:
    """Return the line that the report must name."""
    lines = Path(__file__).read_text().splitlines()
    first = fn.fn.__code__.co_firstlineno
    return next(n for n in range(first, len(lines)) if "# the fault" in lines[n - 1])


@pytest.mark.parametrize("faulty", FAULTY, ids=lambda w: w.name)
def test_verify_reports_a_changed_command_with_file_and_line(begin_run: Drive, faulty: Any) -> None:
    d = begin_run(faulty, shadow=False)
    assert verify(d.run) is None
    d.send(d.done("charge", ""))
    found = verify(d.run)
    assert isinstance(found, NondeterminismError)
    if faulty is not changed_result:  # a result has no line of its own: the body has returned
        assert Path(found.file) == Path(__file__)
        assert f"{Path(__file__).name}:{line_of_the_fault(faulty)}" in str(found)
    if faulty not in (changed_result, missing_command):  # in these two the reported line follows the fault
        assert found.line == line_of_the_fault(faulty)


def test_verify_reports_an_exception_raised_only_on_re_execution(begin_run: Drive) -> None:
    global ticks
    d = begin_run(raises_on_re_execution, shadow=False)
    d.send(d.done("charge", ""))
    ticks = itertools.count(1000)
    found = verify(d.run)
    assert found is not None
    assert "ValueError" in found.produced


def test_verify_reports_contain_no_payloads(begin_run: Drive) -> None:
    """Arguments are described by their sizes."""
    d = begin_run(global_counter, shadow=False)
    d.send(d.done("charge", ""))
    found = verify(d.run)
    assert found is not None
    assert "tick" not in str(found)
    assert "bytes" in str(found)


def test_commands_are_not_recorded_for_comparison_without_verify(begin_run: Drive) -> None:
    d = begin_run(global_counter, shadow=False, settings=run_settings())
    d.send(d.done("charge", ""))
    assert verify(d.run) is None


def test_verify_does_not_change_the_run(begin_run: Drive) -> None:
    @workflow.defn
    def run() -> str:
        return charge("a") + charge("b")

    d = begin_run(run)
    d.send(d.done("charge", "A"))
    for _ in range(3):
        assert verify(d.run) is None
    d.send(d.done("charge", "B"))
    assert d.result == "AB"
