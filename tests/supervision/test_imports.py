"""The imports of the supervision package."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import hourglass._supervision

PACKAGE = Path(hourglass._supervision.__file__).parent


def imported(path: Path) -> set[str]:
    """Return every module that a file imports, anywhere in the file."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return modules


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_supervision_imports_only_the_standard_library_and_errors(path: Path) -> None:
    allowed = {"hourglass.errors", *(f"hourglass._supervision.{file.stem}" for file in PACKAGE.glob("*.py"))}
    foreign = {name for name in imported(path) if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign <= allowed


@pytest.mark.parametrize("name", ["policy", "spec", "exits"])
def test_supervision_policy_spec_and_exits_import_no_effects(name: str) -> None:
    """Neither directly nor through imports."""
    impure = {"asyncio", "time", "logging", "threading", "random"}
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        seen.add(each)
        names = imported(PACKAGE / f"{each}.py")
        assert not names & impure, each
        ours = {
            modules.rpartition(".")[2] for modules in names if modules.startswith("hourglass._supervision.")
        }
        # `process` is imported for type checkers only.
        waiting += ours - seen - {"process"}
