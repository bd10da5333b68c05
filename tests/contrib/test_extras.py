"""A bridge whose library is not installed says which extra brings it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import hourglass.contrib

LIBRARIES = {
    "openai_agents": ("agents", "anyio", "mcp", "openai", "pydantic"),
    "opentelemetry": ("opentelemetry",),
    "pydantic_ai": ("anyio", "pydantic", "pydantic_ai"),
    "sqlalchemy": ("sqlalchemy",),
}
WITHOUT = {"s3"}
"""Bridges that need no extra."""


def _bridges() -> set[str]:
    (home,) = hourglass.contrib.__path__
    parts = {each.stem for each in Path(home).iterdir() if not each.name.startswith((".", "_"))}
    return parts - {"__pycache__"}


def _extras() -> set[str]:
    project = Path(__file__).parents[2] / "pyproject.toml"
    return set(tomllib.loads(project.read_text())["project"]["optional-dependencies"])


@pytest.fixture
def anew() -> Iterator[None]:
    """Bridges are imported anew, and what other tests have imported of them is back afterwards."""
    ours = {name: each for name, each in sys.modules.items() if name.startswith("hourglass.contrib.")}
    attributes = dict(vars(hourglass.contrib))
    for name in ours:
        del sys.modules[name]
    yield
    for name in [each for each in sys.modules if each.startswith("hourglass.contrib.")]:
        del sys.modules[name]
    sys.modules.update(ours)
    for name in vars(hourglass.contrib).keys() - attributes.keys():
        delattr(hourglass.contrib, name)
    vars(hourglass.contrib).update(attributes)


def test_every_bridge_is_tried() -> None:
    """A bridge that is added is tried, too, or is named as one that needs no extra."""
    assert _bridges() == LIBRARIES.keys() | WITHOUT


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    ("bridge", "library"), [(bridge, library) for bridge, all_ in LIBRARIES.items() for library in all_]
)
def test_a_missing_library_is_answered_with_the_extra(
    bridge: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of a bridge's libraries is missing: the error names the bridge, its extra, and what was missing."""
    for name in [each for each in sys.modules if each == library or each.startswith(f"{library}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    extra = bridge.replace("_", "-")
    assert extra in _extras()
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"hourglass.contrib.{bridge}")
    text = str(caught.value)
    assert text.startswith(f"hourglass.contrib.{bridge} needs what its extra brings")
    assert f"pip install 'hourglass-temporal[{extra}]'" in text
    assert library in text
    assert (caught.value.name or "").partition(".")[0] == library


@pytest.mark.usefixtures("anew")
def test_a_fault_of_ours_is_not_answered_with_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of ours that is missing is told as it is: no extra would bring it."""
    monkeypatch.setitem(sys.modules, "hourglass.contrib.sqlalchemy._tables", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("hourglass.contrib.sqlalchemy")
    assert "pip install" not in str(caught.value)


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("bridge", [*LIBRARIES, *WITHOUT])
def test_a_bridge_with_its_library_is_imported(bridge: str) -> None:
    """Where all is there, there is nothing to say."""
    assert importlib.import_module(f"hourglass.contrib.{bridge}").__all__
