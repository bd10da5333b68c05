"""The map of the largest package is complete: whoever adds a file says what it is for."""

from __future__ import annotations

import re
from pathlib import Path

import hourglass._embedded as embedded


def test_every_file_of_the_embedded_engine_is_on_its_map() -> None:
    """The docstring of the package names each of its files, and none that is not there."""
    here = {path.stem for path in Path(embedded.__file__).parent.glob("*.py")} - {"__init__"}
    named = set(re.findall(r"\w+", embedded.__doc__ or ""))
    assert here - named == set()
    assert {word for word in named if "_" in word} - here == {"connect_file", "connect_memory"}
