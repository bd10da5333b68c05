"""Campaigns that fail everything by the hundred: processes, their parts, disk, clock, network and server.

The faults are in the package `durability`.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from .outcome import Outcome, Scale

_WEB_KILLS = {"full": 60, "quick": 12, "short": 3}
_CAMPAIGNS = {  # number of campaigns, and of faults in each
    "full": {"kills": (3, 250), "on_file": (6, 150), "on_server": (2, 75)},
    "quick": {"kills": (1, 100), "on_file": (1, 100), "on_server": (1, 20)},
    "short": {"kills": (1, 12), "on_file": (1, 20), "on_server": (1, 8)},
}
_FEW = 10


def kills(seed: int, scale: Scale) -> Outcome:
    """No start, signal, update or result is lost or duplicated while any of three processes on one file is killed.

    A recovery is the time until the work in progress of a killed process is retried.
    """
    return _campaigns("kills", seed, scale)


def campaign_on_file(seed: int, scale: Scale) -> Outcome:
    """Kill and stop processes, fill, fail, tear and cut off disks, and move clocks while clients use one file."""
    if not _part("shim").is_here():
        return Outcome(1, 0, troubles=("a campaign on a file needs Linux and a C compiler (cc)",))
    return _campaigns("on_file", seed, scale)


def campaign_on_server(seed: int, scale: Scale) -> Outcome:
    """Kill and stop processes, reset, freeze and silence connections, and kill the server while clients use it."""
    return _campaigns("on_server", seed, scale)


def _campaigns(kind: str, seed: int, scale: Scale) -> Outcome:
    rounds, faults = _CAMPAIGNS[scale.name][kind]
    outcome = Outcome(0, 0)
    for number in range(rounds):
        findings = getattr(_part("campaign"), kind)(1000 * seed + number, faults)
        hits = findings.faults.total()
        troubles = tuple(f"campaign {findings.seed}: {violation}" for violation in findings.violations[:_FEW])
        outcome += Outcome(
            hits,
            0 if troubles else hits,
            tuple(findings.recoveries),
            troubles,
            dict(findings.faults),
            dict(findings.checked),
        )
    return outcome


def _part(name: str) -> Any:
    """Import a module of the package `durability`, whose name depends on whether pytest or `python -m
    tests.chaos` runs."""
    above = (__package__ or "").rpartition(".")[0]
    return import_module(f"{above}.durability.{name}" if above else f"durability.{name}")


def web(seed: int, scale: Scale) -> Outcome:
    """Every request to four processes forked after connecting is answered; uses gunicorn if installed."""
    kills, part = _WEB_KILLS[scale.name], _part("web")
    with tempfile.TemporaryDirectory() as folder:
        results = part.ask_while_owners_die(
            Path(folder), kills=kills, seed=seed, gunicorn=part.gunicorn_is_here()
        )
    good = kills if not results.errors else 0
    return Outcome(kills, good, tuple(results.takeovers), tuple(results.errors[:_FEW]))
