"""docs/compatibility.md contains the table of `_evaluator.behaviour`."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from hourglass._evaluator import behaviour
from hourglass._evaluator.behaviour import NEWER_PYTHON, OURS, SINGLE_BATCH, TEMPORALIO, Behaviour, Flag

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def field_descriptions() -> dict[str, str]:
    """Return the docstring of each field of `Behaviour`."""
    (table,) = [
        node
        for node in ast.parse(inspect.getsource(behaviour)).body
        if isinstance(node, ast.ClassDef) and node.name == "Behaviour"
    ]
    descriptions: dict[str, str] = {}
    for field, description in zip(table.body, table.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(field.target, ast.Name)
            assert isinstance(description, ast.Expr), f"{field.target.id} is not described"
            descriptions[field.target.id] = " ".join(ast.literal_eval(description.value).split())
    return descriptions


def format_value(value: object) -> str:
    """Format a value of the table; a flag is shown by its number."""
    if isinstance(value, Flag):
        return f"flag {value.value}"
    return "yes" if value else "no"


def expected_rows() -> list[str]:
    lines: list[str] = []
    for name, words in field_descriptions().items():
        ours, theirs = format_value(getattr(OURS, name)), format_value(getattr(TEMPORALIO, name))
        newer = format_value(NEWER_PYTHON[name]) if name in NEWER_PYTHON else theirs
        batch = format_value(SINGLE_BATCH[name]) if name in SINGLE_BATCH else "as left"
        lines.append(f"| `{name}` | {words} | {ours} | {theirs} | {newer} | {batch} |")
    return lines


def test_compatibility_page_contains_the_behaviour_table() -> None:
    assert set(field_descriptions()) == set(Behaviour.__struct_fields__)
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert found == expected_rows()


def test_compatibility_page_lists_every_flag() -> None:
    text = PAGE.read_text()
    for flag in Flag:
        assert f"| {flag.value} | {flag.name} |" in text
