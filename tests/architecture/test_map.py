"""The docstring of each package lists all of its modules."""

from __future__ import annotations

import ast
import re

import pytest

from . import source

PACKAGES = [
    module for module in source.modules() if module.path.name == "__init__.py" and module.name != "hourglass"
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_docstring_lists_every_module(package: source.Module) -> None:
    existing = {path.stem for path in package.path.parent.glob("*.py")} - {"__init__", "__main__"}
    existing |= {path.parent.name for path in package.path.parent.glob("*/__init__.py")}
    named = set(re.findall(r"\w+", ast.get_docstring(package.tree) or ""))
    assert existing - named == set(), f"the docstring of {package.name} needs a line with the purpose of each"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_package_docstring_lists_no_missing_module(package: source.Module) -> None:
    existing = {path.stem for path in package.path.parent.glob("*.py")}
    existing |= {path.parent.name for path in package.path.parent.glob("*/__init__.py")}
    entries = re.findall(
        r"^(?:    )?((?:\w+, )*\w+)  +\S", ast.get_docstring(package.tree) or "", re.MULTILINE
    )
    named = {name for entry in entries for name in entry.split(", ")}
    assert named - existing == set(), f"the docstring of {package.name} lists files that do not exist"
