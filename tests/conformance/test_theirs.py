"""The page on what Temporal's own SDK tests is true: what it names exists, on every engine where it says so.

Must not know: the scenarios' contents. The page is read as it stands, row by row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import test_same_everywhere  # noqa: F401 - enters all scenarios
from .scenario import SCENARIOS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
_ROW = re.compile(r"^\| `(?P<theirs>[^`]+)` \| (?P<shows>[^|]+) \| (?P<ours>.+) \|$")
_NAME = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A case of theirs: its name, what it shows, and where we show it (empty: nowhere, and `reason` says why)."""

    theirs: str
    shows: str
    ours: tuple[str, ...]
    reason: str = ""


def row(line: str) -> Row | None:
    """A line of the page as a row, if it is one."""
    found = _ROW.match(line)
    if found is None:
        return None
    theirs, shows, ours = found["theirs"], found["shows"], found["ours"]
    if ours.startswith("—"):
        return Row(theirs, shows, (), ours.removeprefix("—").strip())
    return Row(theirs, shows, tuple(_NAME.findall(ours)))


ROWS = [found for line in (HERE / "README.md").read_text().splitlines() if (found := row(line)) is not None]


def problem(name: str) -> str:
    """What is wrong with a name of the last column; empty if nothing is."""
    if "/" not in name and "::" not in name:
        known = SCENARIOS.get(name)
        if known is None:
            return f"there is no scenario {name}"
        return f"{name} is not played on the embedded engines" if known.server_only else ""
    path, _, test = name.partition("::")
    file = ROOT / path if "/" in path else HERE / path
    if not file.exists():
        return f"there is no {path}"
    if not test:
        return ""
    text = file.read_text()
    if f"def {test}(" not in text:
        return f"there is no {test} in {path}"
    if "/" not in path and f"def {test}(world: World" not in text:
        return f"{test} does not take a world"
    return ""


def everywhere(each: Row) -> bool:
    """Whether a case is shown on every engine."""
    return any("/" not in name for name in each.ours)


@pytest.mark.parametrize("each", ROWS, ids=[f"{number}-{each.theirs}" for number, each in enumerate(ROWS)])
def test_rows_of_the_table_name_existing_tests(each: Row) -> None:
    """What a row names exists; a row that names nothing gives a reason."""
    assert [found for found in map(problem, each.ours) if found] == []
    assert bool(each.ours) != bool(each.reason)
    assert each.shows.strip()


def test_every_table_line_is_parsed() -> None:
    """Every line of a table is understood as a row, but for the heads."""
    lines = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)


def test_no_case_is_listed_twice() -> None:
    """A case of theirs that shows one thing stands in one row."""
    cases = [(each.theirs, each.shows) for each in ROWS]
    assert len(set(cases)) == len(cases)


def test_at_least_150_cases_are_covered() -> None:
    """At least 150 cases that Temporal's own SDK tests are shown on every engine, by more than a hundred scenarios."""
    covered = [each for each in ROWS if everywhere(each)]
    assert len(covered) >= 150
    assert len({name for each in covered for name in each.ours if "/" not in name}) >= 100
