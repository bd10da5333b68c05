"""The maps of the largest package are complete: whoever adds a file says what it is for."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import hourglass._embedded as embedded

FLOORS = sorted(path.parent.name for path in Path(embedded.__file__).parent.glob("*/__init__.py"))


def test_every_floor_of_the_embedded_engine_is_on_its_map() -> None:
    """The docstring of the package names each of its packages, and there is no module beside them."""
    assert [path.name for path in Path(embedded.__file__).parent.glob("*.py")] == ["__init__.py"]
    named = set(re.findall(r"\w+", embedded.__doc__ or ""))
    assert set(FLOORS) - named == set()


@pytest.mark.parametrize("floor", FLOORS)
def test_every_file_of_a_floor_is_on_its_map(floor: str) -> None:
    """The docstring of the package names each of its files, and none that is not there."""
    package = importlib.import_module(f"hourglass._embedded.{floor}")
    here = {path.stem for path in Path(str(package.__file__)).parent.glob("*.py")} - {"__init__"}
    named = set(re.findall(r"\w+", package.__doc__ or ""))
    assert here - named == set()
    assert {word for word in named if "_" in word} - here == set()
