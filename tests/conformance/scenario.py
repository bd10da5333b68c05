"""What a scenario is: one function that drives workflows through a `World`, written once for every engine."""

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
    """`order` says what of a history is the same everywhere: its whole order, or (where things run side by side and the
    number of workflow tasks is a matter of chance) how many events of each kind there are, workflow tasks aside.
    """

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
    """Enter a function into the list; further keywords are the worker's, `loud` allows errors in the log."""

    def enter(drive: Drive) -> Drive:
        name = drive.__name__
        assert name not in SCENARIOS, name
        assert drive.__doc__, name
        SCENARIOS[name] = Scenario(
            name, drive, sys.modules[drive.__module__], order, worker, loud, server_only
        )
        return drive

    return enter
