"""Supervision is a package of its own."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import hourglass._supervision

PACKAGE = Path(hourglass._supervision.__file__).parent


def imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_supervision_imports_nothing_but_the_errors(path: Path) -> None:
    """Each file imports the standard library, this package and `hourglass.errors` only."""
    allowed = {"hourglass.errors", *(f"hourglass._supervision.{each.stem}" for each in PACKAGE.glob("*.py"))}
    foreign = {name for name in imported(path) if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign <= allowed


@pytest.mark.parametrize("name", ["policy", "spec", "exits"])
def test_decisions_and_data_are_pure(name: str) -> None:
    """Modules of decisions and data use no event loop, clock, log, thread or random numbers, directly or through
    imports.
    """
    impure = {"asyncio", "time", "logging", "threading", "random"}
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        seen.add(each)
        names = imported(PACKAGE / f"{each}.py")
        assert not names & impure, each
        ours = {found.rpartition(".")[2] for found in names if found.startswith("hourglass._supervision.")}
        # For type checkers only: a spec names the type of the context that its start is called with.
        waiting += ours - seen - {"process"}
