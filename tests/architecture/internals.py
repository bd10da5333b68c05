"""The share of test functions that touch deep internals: part of `make house`.

A test function counts if its file, a conftest.py above it, or a helper of the tests that these import uses a deep module: a
private one that is no seam. The seams are `_contract`, `_history`, the evaluator's events and commands, and the engine's `Store`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests import changed

from . import source

SEAMS = (
    "hourglass._contract",
    "hourglass._history",
    "hourglass._engine.events",
    "hourglass._engine.commands",
    "hourglass._embedded.store.store",
)
"""Private modules that tests may use."""


def is_deep(module: str) -> bool:
    """Whether a module is private to the package and no seam."""
    if not module.startswith("hourglass.") or not any(part.startswith("_") for part in module.split(".")):
        return False
    return not any(module == seam or module.startswith(f"{seam}.") for seam in SEAMS)


@cache
def _used(path: Path) -> tuple[frozenset[str], frozenset[Path]]:
    """Return the deep modules that a file imports, and the helpers in tests that it imports."""
    name = path.relative_to(source.ROOT).as_posix()
    known = {each.name for each in source.modules()}
    deep, helpers = set(), set()
    for module, imported in changed.read(name, path.read_text()).imports:
        inner = f"{module}.{imported}"
        target = inner if inner in known else module
        if is_deep(target):
            deep.add(target)
        for candidate in (module, inner, f"tests.{module}", f"tests.{inner}"):
            file = source.ROOT / (candidate.replace(".", "/") + ".py")
            if candidate.startswith("tests.") and file.exists():
                helpers.add(file)
    for conftest in [
        folder / "conftest.py" for folder in path.parents if folder.is_relative_to(source.ROOT / "tests")
    ]:
        if conftest.exists() and conftest.parent != source.ROOT / "tests" and conftest != path:
            helpers.add(conftest)
    return frozenset(deep), frozenset(helpers)


def deep_modules(path: Path) -> set[str]:
    """Return the deep modules that a test file uses, directly or through helpers of the tests."""
    found: set[str] = set()
    seen, todo = set(), [path]
    while todo:
        file = todo.pop()
        if file not in seen:
            seen.add(file)
            deep, helpers = _used(file)
            found |= deep
            todo += helpers
    return found


def functions(path: Path) -> Iterator[str]:
    """Yield the names of a file's test functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
            yield node.name


def count() -> tuple[int, int, dict[str, int]]:
    """Return how many test functions touch deep internals, how many there are, and those that do by directory."""
    deep, total = 0, 0
    by_folder: dict[str, int] = {}
    for path in sorted((source.ROOT / "tests").rglob("test_*.py")):
        names = len(list(functions(path)))
        total += names
        if names and deep_modules(path):
            deep += names
            folder = path.relative_to(source.ROOT / "tests").parts[0]
            by_folder[folder] = by_folder.get(folder, 0) + names
    return deep, total, by_folder
