"""The fixture that creates drivers and drops their runs after the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from .driver import Driver


class Drive(Protocol):
    """Creates a driver for a workflow and its arguments."""

    def __call__(self, workflow: Any, *arguments: Any, **options: Any) -> Driver: ...


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Return a factory of drivers. Their fibers are dropped on this thread after the test, which must issue no commands (I5)."""
    drivers: list[Driver] = []

    def make(workflow: Any, *arguments: Any, **options: Any) -> Driver:
        drivers.append(Driver(workflow, *arguments, **options))
        return drivers[-1]

    yield make
    for driver in drivers:
        commands = list(driver.run.state.commands)
        driver.run.drop()
        assert list(driver.run.state.commands) == commands, "a dropped fiber issued commands"


@pytest.fixture
def begin_run(drive: Drive) -> Drive:
    """Return a factory of drivers that have delivered the first activation."""

    def make(workflow: Any, *arguments: Any, **options: Any) -> Driver:
        driver = drive(workflow, *arguments, **options)
        driver.begin()
        return driver

    return make
