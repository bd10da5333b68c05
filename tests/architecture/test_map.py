"""The map of each package is complete: a file that is added says there what it is for."""

from __future__ import annotations

import ast
import re

import pytest

from . import source

PACKAGES = [each for each in source.modules() if each.path.name == "__init__.py" and each.name != "hourglass"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.name)
def test_every_file_is_in_its_package_docstring(package: source.Module) -> None:
    """The docstring of a package names each of its modules and packages."""
    here = {path.stem for path in package.path.parent.glob("*.py")} - {"__init__", "__main__"}
    here |= {path.parent.name for path in package.path.parent.glob("*/__init__.py")}
    named = set(re.findall(r"\w+", ast.get_docstring(package.tree) or ""))
    assert here - named == set(), f"the docstring of {package.name} wants a line for each: what it is for"


def test_every_part_is_in_the_root_docstring() -> None:
    """The docstring of the root names each of its modules and packages."""
    root = source.module("__init__.py")
    named = set(re.findall(r"\w+", ast.get_docstring(root.tree) or ""))
    parts = {each.part for each in source.modules()} - {"", "__main__"}
    assert parts - named == set(), (
        "the docstring of hourglass/__init__.py wants a line for each: what it is for"
    )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.name)
def test_package_docstrings_name_no_missing_file(package: source.Module) -> None:
    """An entry of a map, a name in front of two spaces, is a module or a package that exists."""
    here = {path.stem for path in package.path.parent.glob("*.py")}
    here |= {path.parent.name for path in package.path.parent.glob("*/__init__.py")}
    entries = re.findall(
        r"^(?:    )?((?:\w+, )*\w+)  +\S", ast.get_docstring(package.tree) or "", re.MULTILINE
    )
    named = {name for entry in entries for name in entry.split(", ")}
    assert named - here == set(), f"the docstring of {package.name} tells of files that are gone"
