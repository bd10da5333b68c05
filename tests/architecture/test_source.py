"""The reader of the source sees what the other tests rely on it to see."""

from __future__ import annotations

from . import source

TEXT = """
from __future__ import annotations
import a.b
from ._near import x
from .. import errors
from hourglass import workflow, Client
if TYPE_CHECKING:
    from hourglass.worker import Worker
def f():
    from hourglass._evaluator import events
    import_module("c.d")
    importlib.import_module("e")
    import_module(name)
"""


def _module(name: str, file: str) -> source.Module:
    module = source.Module(name, source.PACKAGE / file)
    module.__dict__["text"] = TEXT
    return module


def test_all_kinds_of_imports_are_detected() -> None:
    """Relative, nested, typing-only and called imports are found, and submodules told from names."""
    found = [each.target for each in source.imports_of(_module("hourglass.client._x", "client/_x.py"))]
    assert sorted(found) == sorted(
        [
            "__future__",
            "a.b",
            "hourglass.client._near",
            "hourglass.errors",
            "hourglass.workflow",
            "hourglass",
            "hourglass.worker",
            "hourglass._evaluator.events",
            "c.d",
            "e",
        ]
    )


def test_relative_imports_of_a_package_are_resolved() -> None:
    """In a package's own file one dot is the package itself."""
    found = {each.target for each in source.imports_of(_module("hourglass.client", "client/__init__.py"))}
    assert "hourglass.client._near" in found
    assert "hourglass.errors" in found


def test_imports_within_blocks_are_recognised() -> None:
    """Blocks are known by their lines, so that an import can be told to stand in one."""
    module = _module("hourglass.client._x", "client/_x.py")
    lines = {each.target: each.line for each in source.imports_of(module)}
    assert lines["hourglass.worker"] in source.lines_within(module, source.is_type_checking_block)
    assert lines["c.d"] in source.lines_within(module, source.is_function)
    assert lines["a.b"] not in source.lines_within(module, source.is_function)


def test_existing_modules_are_found() -> None:
    """The modules that exist are found under their names."""
    names = {each.name for each in source.modules()}
    assert {"hourglass", "hourglass.errors", "hourglass._evaluator.fibers", "hourglass.workflow"} <= names
