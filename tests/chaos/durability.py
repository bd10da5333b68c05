"""Workers of a file are killed at random instants, by the hundred: under clients of theirs, and under a web server.

What happens is in the package `durability`, beside this one.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from .outcome import Outcome, Scale

_STORMS = {
    "full": {"workflows": 3000, "kills": 500, "limit": 1200.0},
    "quick": {"workflows": 300, "kills": 60, "limit": 300.0},
    "short": {"workflows": 60, "kills": 12},
}
_WEB_KILLS = {"full": 60, "quick": 12, "short": 3}
_FEW = 10


def _part(name: str) -> Any:
    """A module of that package: what it is called depends on whether pytest runs us or `python -m tests.chaos`."""
    above = (__package__ or "").rpartition(".")[0]
    return import_module(f"{above}.durability.{name}" if above else f"durability.{name}")


def storm(seed: int, scale: Scale) -> Outcome:
    """No start, signal or result is lost or doubled."""
    with tempfile.TemporaryDirectory() as folder:
        raging = _part("storm").Storm(Path(folder), _part("storm").Size(**_STORMS[scale.name]), seed)
        told = raging.rage()
        found = _part("audit").complaints(told, raging.path, raging.notes)
    good = told.kills if not found else 0
    return Outcome(told.kills, good, troubles=tuple(found[:_FEW]))


def web(seed: int, scale: Scale) -> Outcome:
    """Four processes that were forked after connecting, by gunicorn where it is installed: every request is answered."""
    kills, part = _WEB_KILLS[scale.name], _part("web")
    with tempfile.TemporaryDirectory() as folder:
        asked = part.ask_while_owners_die(
            Path(folder), kills=kills, seed=seed, gunicorn=part.gunicorn_is_here()
        )
    good = kills if not asked.errors else 0
    return Outcome(kills, good, tuple(asked.takeovers), tuple(asked.errors[:_FEW]))
