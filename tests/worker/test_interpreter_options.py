"""`switch_interval` and `gc_threshold` of workers: process-wide settings of Python that change only on request."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from hourglass import Client, Worker, workflow
from hourglass._worker.interpreter import InterpreterOptions, InterpreterSettings
from hourglass.errors import UsageError


@workflow.defn
def returns_settings() -> list[float]:
    return [sys.getswitchinterval(), gc.get_threshold()[0]]


@pytest.fixture(autouse=True)
def original() -> Iterator[list[float]]:
    """Yield the settings of the test process, and restore them afterwards."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    yield [interval, threshold[0]]
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


def test_worker_does_not_change_interpreter_settings_by_default(original: list[float]) -> None:
    with Client.connect("local:") as client, Worker(client, workflows=[returns_settings]):
        assert client.execute_workflow(returns_settings, id="a") == original


def test_interpreter_options_apply_until_the_worker_stops(original: list[float]) -> None:
    with Client.connect("local:") as client:
        with Worker(client, workflows=[returns_settings], switch_interval=0.001, gc_threshold=9000):
            assert client.execute_workflow(returns_settings, id="a") == [pytest.approx(0.001), 9000]
        assert [sys.getswitchinterval(), gc.get_threshold()[0]] == original


def test_shortest_interval_and_largest_threshold_of_several_workers_apply(original: list[float]) -> None:
    settings = InterpreterSettings()
    settings.apply("one", InterpreterOptions(0.001, 5000))
    settings.apply("two", InterpreterOptions(0.002, 9000))
    assert (sys.getswitchinterval(), gc.get_threshold()[0]) == (pytest.approx(0.001), 9000)
    settings.restore("one")
    assert (sys.getswitchinterval(), gc.get_threshold()[0]) == (pytest.approx(0.002), 9000)
    settings.restore("two")
    settings.restore("two")
    assert [sys.getswitchinterval(), gc.get_threshold()[0]] == original


def test_interpreter_settings_changed_by_the_program_are_not_restored() -> None:
    settings = InterpreterSettings()
    settings.apply("one", InterpreterOptions(0.001, 5000))
    sys.setswitchinterval(0.003)
    gc.set_threshold(1234, 10, 10)
    settings.restore("one")
    assert (sys.getswitchinterval(), gc.get_threshold()[0]) == (pytest.approx(0.003), 1234)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"switch_interval": 5}, "switch_interval must be above 0 and at most 1 second, not 5"),
        ({"gc_threshold": 0}, "gc_threshold must be an int above 0, not 0"),
        ({"gc_threshold": 1.5}, "gc_threshold must be an int above 0, not 1.5"),
        ({"gc_threshold": 2**40}, "gc_threshold must be an int above 0"),
    ],
)
def test_invalid_interpreter_options_are_rejected(options: dict[str, object], message: str) -> None:
    with Client.connect("local:") as client, pytest.raises(UsageError, match=message):
        Worker(client, workflows=[returns_settings], **options)  # type: ignore[arg-type]
