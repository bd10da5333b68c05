"""Import errors of bridges whose library is not installed: they name the extra."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
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


PROGRAM = """
import importlib, json, sys

answers = {}
for bridge, missing in json.loads(sys.argv[1]):
    known = dict(sys.modules)
    for name in [each for each in known if each == missing or each.startswith((f"{missing}.", "hourglass.contrib."))]:
        del sys.modules[name]
    if missing:
        sys.modules[missing] = None
    try:
        importlib.import_module(f"hourglass.contrib.{bridge}").__all__
        answers[f"{bridge} without {missing}"] = ["", ""]
    except ModuleNotFoundError as error:
        answers[f"{bridge} without {missing}"] = [str(error), error.name or ""]
    sys.modules.clear()
    sys.modules.update(known)
print(json.dumps(answers))
"""
"""Imports bridges while a module is missing. It runs in another process, since importing a module again creates new classes."""

CASES = [(bridge, library) for bridge, all_ in LIBRARIES.items() for library in all_]
OURS = ("sqlalchemy", "hourglass.contrib.sqlalchemy._tables")


@pytest.fixture(scope="module")
def import_errors() -> dict[str, tuple[str, str]]:
    """The message of each import and the name of the missing module."""
    cases = [*CASES, OURS, *((bridge, "") for bridge in (*LIBRARIES, *WITHOUT))]
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert not process.returncode, process.stderr
    return {case: (text, name) for case, (text, name) in json.loads(process.stdout).items()}


def test_every_contrib_module_is_listed_in_this_file() -> None:
    assert _bridges() == LIBRARIES.keys() | WITHOUT


@pytest.mark.parametrize(("bridge", "library"), CASES)
def test_import_error_of_missing_library_names_bridge_extra_and_library(
    bridge: str, library: str, import_errors: dict[str, tuple[str, str]]
) -> None:
    extra = bridge.replace("_", "-")
    assert extra in _extras()
    text, name = import_errors[f"{bridge} without {library}"]
    assert text.startswith(f"hourglass.contrib.{bridge} needs the packages of its extra")
    assert f"pip install 'hourglass-temporal[{extra}]'" in text
    assert library in text
    assert name.partition(".")[0] == library


def test_import_error_of_missing_hourglass_module_names_no_extra(
    import_errors: dict[str, tuple[str, str]],
) -> None:
    text, _ = import_errors["{} without {}".format(*OURS)]
    assert text
    assert "pip install" not in text


@pytest.mark.parametrize("bridge", [*LIBRARIES, *WITHOUT])
def test_contrib_module_imports_with_all_libraries_installed(
    bridge: str, import_errors: dict[str, tuple[str, str]]
) -> None:
    assert import_errors[f"{bridge} without "] == ("", "")
