"""Exports of public modules: `__all__` is sorted, importable and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from importlib.metadata import version

import pytest

import hourglass

from . import source

PUBLIC = [module for module in source.modules() if module.is_public]


def _sort_key(name: str) -> tuple[int, str]:
    """Sort constants first, then classes, then functions, as the linter does."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_all_of_a_public_module_is_sorted_and_importable(module: source.Module) -> None:
    loaded = importlib.import_module(module.name)
    names = loaded.__all__
    assert list(names) == sorted(set(names), key=_sort_key)
    missing = [name for name in names if not hasattr(loaded, name)]
    assert not missing


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_public_module_exports_no_private_name(module: source.Module) -> None:
    names = importlib.import_module(module.name).__all__
    assert [name for name in names if name.startswith("_") and name != "__version__"] == []


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_exported_functions_and_classes_have_docstrings(module: source.Module) -> None:
    loaded = importlib.import_module(module.name)
    exports = {name: getattr(loaded, name) for name in loaded.__all__}
    undocumented = [
        name
        for name, export in exports.items()
        if (inspect.isclass(export) or inspect.isroutine(export)) and not export.__doc__
    ]
    assert not undocumented


@pytest.mark.parametrize("module", source.modules(), ids=lambda module: module.place)
def test_every_source_file_has_a_docstring(module: source.Module) -> None:
    assert ast.get_docstring(module.tree)


def test_lazy_exports_of_the_root_match_their_type_checking_imports() -> None:
    typed_homes: dict[str, str] = {}
    for node in ast.walk(source.module("__init__.py").tree):
        if isinstance(node, ast.If):
            for statement in node.body:
                if isinstance(statement, ast.ImportFrom):
                    typed_homes |= {alias.name: statement.module or "" for alias in statement.names}
    modules = {name for name, home in typed_homes.items() if home == "hourglass"}
    assert {name: home for name, home in typed_homes.items() if name not in modules} == hourglass._HOMES
    assert set(hourglass.__all__) == {*typed_homes, "__version__"}
    assert modules <= hourglass._MODULES


def test_every_public_module_is_an_attribute_of_the_root() -> None:
    top_level = {module.part for module in PUBLIC if module.part}
    assert top_level == hourglass._MODULES
    for name in top_level:
        assert getattr(hourglass, name).__name__ == f"hourglass.{name}"
    assert top_level | set(hourglass.__all__) <= set(dir(hourglass))


def test_unknown_attribute_of_the_root_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Clinet"):
        _ = hourglass.Clinet


def test_package_version_is_read_from_the_root_module() -> None:
    settings = tomllib.loads((source.ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    assert settings["tool"]["hatch"]["version"]["path"] == "src/hourglass/__init__.py"
    assert version("hourglass-temporal") == hourglass.__version__
