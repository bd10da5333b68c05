"""The analysis of the source on which other tests rely: imports, blocks and modules."""

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


def test_source_analysis_finds_relative_nested_typing_and_called_imports() -> None:
    found = [
        imported.target for imported in source.imports_of(_module("hourglass.client._x", "client/_x.py"))
    ]
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


def test_source_analysis_resolves_relative_imports_of_a_package() -> None:
    found = {
        imported.target for imported in source.imports_of(_module("hourglass.client", "client/__init__.py"))
    }
    assert "hourglass.client._near" in found
    assert "hourglass.errors" in found


def test_source_analysis_locates_functions_and_type_checking_blocks() -> None:
    module = _module("hourglass.client._x", "client/_x.py")
    lines = {imported.target: imported.line for imported in source.imports_of(module)}
    assert lines["hourglass.worker"] in source.lines_within(module, source.is_type_checking_block)
    assert lines["c.d"] in source.lines_within(module, source.is_function)
    assert lines["a.b"] not in source.lines_within(module, source.is_function)


def test_source_analysis_lists_all_modules() -> None:
    names = {module.name for module in source.modules()}
    assert {"hourglass", "hourglass.errors", "hourglass._evaluator.fibers", "hourglass.workflow"} <= names
