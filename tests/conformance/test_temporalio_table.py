"""The table of temporalio's test cases in README.md is true: the tests that it names exist, on every engine where it says
so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import test_scenarios  # noqa: F401 - enters all scenarios
from .scenario import SCENARIOS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
_ROW = re.compile(r"^\| `(?P<temporalio_test>[^`]+)` \| (?P<behaviour>[^|]+) \| (?P<own_tests>.+) \|$")
_NAME = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A test case of temporalio: its name, what it tests, and our tests of the same; without any, the reason."""

    temporalio_test: str
    behaviour: str
    own_tests: tuple[str, ...]
    reason: str = ""


def parse_row(line: str) -> Row | None:
    """Parse a line of the page; return None if it is not a row."""
    match = _ROW.match(line)
    if match is None:
        return None
    temporalio_test, behaviour, own_tests = match["temporalio_test"], match["behaviour"], match["own_tests"]
    if own_tests.startswith("—"):
        return Row(temporalio_test, behaviour, (), own_tests.removeprefix("—").strip())
    return Row(temporalio_test, behaviour, tuple(_NAME.findall(own_tests)))


ROWS = [
    found for line in (HERE / "README.md").read_text().splitlines() if (found := parse_row(line)) is not None
]


def problem(name: str) -> str:
    """Describe what is wrong with a name in the last column; return an empty string if nothing is."""
    if "/" not in name and "::" not in name:
        scenario = SCENARIOS.get(name)
        if scenario is None:
            return f"there is no scenario {name}"
        return f"{name} is not played on the embedded engines" if scenario.server_only else ""
    path, _, test = name.partition("::")
    file = ROOT / path if "/" in path else HERE / path
    if not file.exists():
        return f"there is no {path}"
    if not test:
        return ""
    text = file.read_text()
    if f"def {test}(" not in text:
        return f"there is no {test} in {path}"
    if "/" not in path and not re.search(rf"def {test}\(\s*world: World", text):
        return f"{test} does not take a world"
    return ""


def is_tested_on_every_engine(row: Row) -> bool:
    """Return whether a case is tested on every engine."""
    return any("/" not in name for name in row.own_tests)


@pytest.mark.parametrize(
    "row", ROWS, ids=[f"{number}-{each.temporalio_test}" for number, each in enumerate(ROWS)]
)
def test_table_row_names_existing_tests_or_a_reason(row: Row) -> None:
    assert [found for found in map(problem, row.own_tests) if found] == []
    assert bool(row.own_tests) != bool(row.reason)
    assert row.behaviour.strip()


def test_every_line_of_the_table_is_parsed() -> None:
    lines = [line for line in (HERE / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(ROWS)


def test_no_temporalio_case_is_listed_twice() -> None:
    cases = [(row.temporalio_test, row.behaviour) for row in ROWS]
    assert len(set(cases)) == len(cases)


def test_at_least_150_temporalio_cases_are_tested_on_every_engine() -> None:
    covered = [row for row in ROWS if is_tested_on_every_engine(row)]
    assert len(covered) >= 150
    assert len({name for row in covered for name in row.own_tests if "/" not in name}) >= 100
