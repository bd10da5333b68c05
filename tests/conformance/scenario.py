"""Scenarios: functions that drive workflows through a `World`, written once for every engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from .world import World

Drive = Callable[[World], None]
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
        name = drive.__name__
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(
            name, drive, sys.modules[drive.__module__], order, worker, loud, server_only
        )
        return drive

    return enter
