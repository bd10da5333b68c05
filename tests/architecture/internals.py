"""The share of test functions that touch deep internals: part of `make house`.

Deep is a private module that is no seam (`SEAMS`, `FACADES`). A test function counts if it uses a name of a deep module, or if
a function, fixture, class or constant of its own file does that it uses. Names that a helper of the tests imports from a deep
module and hands on count as that module's own; what a helper does inside does not count: such a helper is the one place to
change when the module is restructured.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from . import source

SEAMS = {
    "hourglass._contract": "what engines offer to clients and workers",
    "hourglass._history": "Temporal's events, which two engines and every tool share",
    "hourglass._evaluator.events": "input of the evaluator",
    "hourglass._evaluator.commands": "output of the evaluator",
    "hourglass._evaluator.specs": "the options that commands, requests and events contain",
    "hourglass._embedded.transitions": "pure: from a run and a cause to a change",
    "hourglass._embedded.schedules.transitions": "pure: from a schedule and a cause to a change",
    "hourglass._embedded.schedules.times": "pure: from calendars, intervals and cron strings to times",
    "hourglass._embedded.store.store": "what the embedded engine needs of a store",
    "hourglass._embedded.store.filters": "pure: from the text of a list filter to a condition",
    "hourglass._worker.handles.life": "pure: states and limits of a handle, and the next step of one that drains",
    "hourglass._supervision.policy": "pure: which children are restarted, and when a supervisor gives up",
    "hourglass._tools.timeline.timeline": "pure: from the events of a history to a timeline",
    "hourglass._tools.timeline.spans": "the timeline as data",
    "hourglass._tools.diagnosis.reasons": "pure: from facts about a run to the causes of its state",
    "hourglass._tools.diagnosis.diagnosis": "those facts and causes, as data",
}
"""Private modules that tests may use, each with what it is: data, a pure decision, or an interface with several
implementations. What is below such a package belongs to it.
"""

FACADES = {
    "hourglass._supervision": "supervision trees, which know nothing else of this package",
    "hourglass._tools.lint": "the linter, which reads source and imports nothing else of this package",
    "hourglass._embedded": "opens an embedded engine on a clock; all else goes through the contract",
}
"""Private packages whose exported names tests may use; their modules are deep."""

TESTS = source.ROOT / "tests"


def is_deep(module: str) -> bool:
    """Whether a module is private to the package and no seam."""
    if not module.startswith("hourglass.") or not any(part.startswith("_") for part in module.split(".")):
        return False
    return module not in FACADES and not any(
        module == seam or module.startswith(f"{seam}.") for seam in SEAMS
    )


class TestFile:
    """The names that a file of the tests imports, and those that it defines with the names that each of them uses."""

    __test__ = False

    def __init__(self, path: Path, text: str) -> None:
        tree = ast.parse(text)
        name = ".".join(["tests", *path.relative_to(TESTS).with_suffix("").parts])
        importer = source.Module(name.removesuffix(".__init__"), path)
        self.imported: dict[str, tuple[str, str]] = {}
        self.uses: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = source.base_of(importer, node)
                self.imported |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                self.imported |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        for node in tree.body:
            for defined in _defined_by(node):
                self.uses.setdefault(defined, set()).update(_names_in(node))
        self.tests = [name for name in self.uses if name.startswith("test_")]

    def used_by(self, test: str) -> set[str]:
        """Return the imported names that a test function uses, directly or through other definitions of the file."""
        reached, todo = {test}, [test]
        while todo:
            new = self.uses.get(todo.pop(), set()) - reached
            reached |= new
            todo += new
        return reached & self.imported.keys()


def _defined_by(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yield variables and the names of arguments, which may be fixtures."""
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name) | ast.arg(arg=name):
                yield name


@cache
def _file(path: Path) -> TestFile:
    return TestFile(path, path.read_text())


def _comes_from_deep(module: str, name: str) -> bool:
    """Whether an imported name is of a deep module, directly or re-exported by a helper of the tests."""
    inner = f"{module}.{name}"
    if is_deep(inner if source.is_module(inner) else module):
        return True
    for candidate in (module, f"tests.{module}"):
        helper = source.ROOT / (candidate.replace(".", "/") + ".py")
        if candidate.startswith("tests.") and helper.exists() and name in _file(helper).imported:
            return _comes_from_deep(*_file(helper).imported[name])
    return False


def deep_functions(path: Path) -> list[str]:
    """Return the test functions of a file that touch deep internals."""
    file = _file(path)
    deep = {name for name, origin in file.imported.items() if _comes_from_deep(*origin)}
    return [test for test in file.tests if file.used_by(test) & deep]


def count() -> tuple[int, int, dict[str, int]]:
    """Return how many test functions touch deep internals, how many there are, and those that do by directory."""
    total = 0
    by_folder: dict[str, int] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        total += len(_file(path).tests)
        if deep := deep_functions(path):
            folder = path.relative_to(TESTS).parts[0]
            by_folder[folder] = by_folder.get(folder, 0) + len(deep)
    return sum(by_folder.values()), total, by_folder
