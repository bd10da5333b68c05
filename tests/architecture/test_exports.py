"""What is public is public on purpose: listed, sorted, importable and described."""

from __future__ import annotations

import ast
import importlib
import inspect
import tomllib
from importlib.metadata import version

import pytest

import hourglass

from . import source

PUBLIC = [each for each in source.modules() if each.is_public]


def _sort_key(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest: the order that the linter keeps too."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_all_is_sorted_and_importable(module: source.Module) -> None:
    """A public module lists its names in order, each once, and has every one of them."""
    loaded = importlib.import_module(module.name)
    names = loaded.__all__
    assert list(names) == sorted(set(names), key=_sort_key)
    missing = [name for name in names if not hasattr(loaded, name)]
    assert not missing


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_no_private_name_is_exported(module: source.Module) -> None:
    """No name of a public module's list begins with an underscore, but for the version."""
    names = importlib.import_module(module.name).__all__
    assert [name for name in names if name.startswith("_") and name != "__version__"] == []


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.name)
def test_exports_are_described(module: source.Module) -> None:
    """Every public function and class has a docstring of its own."""
    loaded = importlib.import_module(module.name)
    things = {name: getattr(loaded, name) for name in loaded.__all__}
    silent = [
        name
        for name, thing in things.items()
        if (inspect.isclass(thing) or inspect.isroutine(thing)) and not thing.__doc__
    ]
    assert not silent


@pytest.mark.parametrize("module", source.modules(), ids=lambda module: module.place)
def test_every_file_has_a_docstring(module: source.Module) -> None:
    """Every file begins with a docstring."""
    assert ast.get_docstring(module.tree)


def test_root_names_are_typed_and_loaded_alike() -> None:
    """Each name of the root is loaded from where type checkers are told that it is."""
    told: dict[str, str] = {}
    for node in ast.walk(source.module("__init__.py").tree):
        if isinstance(node, ast.If):
            for each in node.body:
                if isinstance(each, ast.ImportFrom):
                    told |= {alias.name: each.module or "" for alias in each.names}
    modules = {name for name, home in told.items() if home == "hourglass"}
    assert {name: home for name, home in told.items() if name not in modules} == hourglass._HOMES
    assert set(hourglass.__all__) == {*told, "__version__"}
    assert modules <= hourglass._MODULES


def test_root_knows_the_public_modules() -> None:
    """Every public module is an attribute of the root, whether or not somebody imported it before."""
    top_level = {each.part for each in PUBLIC if each.part}
    assert top_level == hourglass._MODULES
    for name in top_level:
        assert getattr(hourglass, name).__name__ == f"hourglass.{name}"
    assert top_level | set(hourglass.__all__) <= set(dir(hourglass))


def test_root_rejects_unknown_names() -> None:
    """A name that does not exist is an AttributeError, as in any module."""
    with pytest.raises(AttributeError, match="Clinet"):
        _ = hourglass.Clinet


def test_version_equals_the_package_version() -> None:
    """The build reads the version from `hourglass.__version__`, its only source."""
    settings = tomllib.loads((source.ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    assert settings["tool"]["hatch"]["version"]["path"] == "src/hourglass/__init__.py"
    assert version("hourglass-temporal") == hourglass.__version__
