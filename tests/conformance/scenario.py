"""Scenarios: functions that drive workflows through a `World`, written once for every engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Literal, TypeVar

from .world import World

Drive = Callable[[World], None]
C = TypeVar("C", bound=Callable[..., Any])
Order = Literal["exact", "loose"]


@dataclass(frozen=True)
class Scenario:
    """A registered scenario. `order` says how the histories of two engines are compared: "exact" compares all
    events in order, "loose" only the number of events of each type without workflow tasks, for scenarios with
    concurrent work."""

    name: str
    drive: Drive
    module: ModuleType
    order: Order = "exact"
    worker: dict[str, Any] = field(default_factory=dict)
    loud: bool = False
    server_only: str = ""


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    order: Order = "exact", *, loud: bool = False, server_only: str = "", **worker: Any
) -> Callable[[Drive], Drive]:
    """Register a scenario. Further keywords are options of the worker; `loud` allows errors in the log."""

    def enter(drive: Drive) -> Drive:
        _register(drive.__name__, drive, drive.__module__, order, worker, loud, server_only)
        return drive

    return enter


def returns(
    result: Any, *arguments: Any, name: str = "", order: Order = "exact", loud: bool = False, **worker: Any
) -> Callable[[C], C]:
    """Register a workflow as a scenario, by default of its own name: called with these arguments it returns this result."""

    def enter(definition: C) -> C:
        def drive(world: World) -> None:
            assert world.run(definition, *arguments) == result

        _register(name or definition.__name__, drive, definition.__module__, order, worker, loud)
        return definition

    return enter


def scenarios(order: Order = "exact", **cases: tuple[Any, ...]) -> Callable[[C], C]:
    """Register a scenario for each of these names, with the arguments of the decorated function and, last, its result."""

    def enter(function: C) -> C:
        def drive(values: tuple[Any, ...], world: World) -> None:
            assert function(world, *values[:-1]) == values[-1]

        for name, values in cases.items():
            _register(name, partial(drive, values), function.__module__, order)
        return function

    return enter


def _register(name: str, drive: Drive, module: str, order: Order, *options: Any) -> None:
    assert name not in SCENARIOS, name
    SCENARIOS[name] = Scenario(name, drive, sys.modules[module], order, *options)
