"""The counts of `make house` and of the scripts in `benchmarks`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from . import house, internals, prose, source

TEXT = '''
"""What a file is for."""

# The comment tells nothing, so to say.
# --- a banner ---

LIMIT = 1
"""Those that stand after an assignment."""


def start(given, options):
    """Start a workflow."""
    for each in options:
        if each and given or not options:
            return [one for one in options if one]


class Table:
    """The same of a table."""
'''


def test_prose_measure_counts_docstrings_openings_habits_and_names() -> None:
    found = prose.measure(TEXT)
    assert (found.docstrings, found.openings, found.names) == (4, 2, 3)
    assert found.habits == {"clause": 2, "tell": 2, "vague": 1, "idiom": 1}
    assert found.words == 5 + 7 + 6 + 3 + 5


def test_prose_total_is_the_sum_of_the_packages() -> None:
    rows = prose.by_package(source.modules()[::20])
    total = rows.pop("all")
    assert len(rows) > 5
    assert total.words == sum(row.words for row in rows.values())
    assert total.docstrings == sum(row.docstrings for row in rows.values())


def test_complexity_counts_loops_conditions_comprehensions_and_operands() -> None:
    assert house.complexity(ast.parse(TEXT)) == 1 + 1 + 1 + 2 + 1 + 1


def test_house_counts_banner_comments() -> None:
    assert len(house.BANNER.findall(TEXT)) == 1


@pytest.mark.parametrize(
    ("module", "is_deep"),
    [
        ("hourglass._worker.lanes.lanes", True),
        ("hourglass._embedded.store.sqlite.database", True),
        ("hourglass.client._session", True),
        ("hourglass._evaluator.fibers", True),
        ("hourglass._evaluator.events", False),
        ("hourglass._contract.handle", False),
        ("hourglass._embedded.transitions.timers", False),
        ("hourglass._embedded.store.store", False),
        ("hourglass._supervision", False),
        ("hourglass._supervision.node", True),
        ("hourglass.client", False),
        ("asyncio._private", False),
    ],
)
def test_private_module_counts_as_deep_internal_unless_it_is_a_seam(module: str, is_deep: bool) -> None:
    assert internals.is_deep(module) is is_deep


SUITE = """
from hourglass import Client
from hourglass._worker.lanes.lanes import Lane
from tests.worker.lanes.lane_world import LaneWorld, Clock
from tests.specs import made

LIMIT = Lane.limit

def helper():
    return LIMIT

@pytest.fixture
def lane():
    return Lane()

def test_through_a_constant():
    helper()

def test_through_a_fixture(lane):
    pass

def test_public():
    Client()

def test_with_a_helper():
    made()
"""


def test_internals_measure_follows_helpers_fixtures_and_constants_of_a_test_file() -> None:
    file = internals.TestFile(internals.TESTS / "runtime" / "test_it.py", SUITE)
    assert {test: file.used_by(test) for test in file.tests} == {
        "test_through_a_constant": {"Lane"},
        "test_through_a_fixture": {"Lane"},
        "test_public": {"Client"},
        "test_with_a_helper": {"made"},
    }


def test_internals_measure_counts_names_that_a_helper_re_exports() -> None:
    assert "test_total_journal_size_is_limited" in internals.deep_functions(
        source.ROOT / "tests/scale/test_worker_parts.py"
    )
    assert internals.deep_functions(source.ROOT / "tests/interop/test_interop.py") == []
    assert internals._comes_from_deep("tests.worker.handles.scripted", "BridgeHolder")
    assert not internals._comes_from_deep("tests.worker.handles.scripted", "ScriptedHandle")


def test_benchmark_scripts_print_figures(tmp_path: Path) -> None:
    calls = _run("benchmarks.calls", "--runs", "5", "--json")[0]
    assert calls["file"]["_evaluator"] > 10
    assert calls["memory"]["_embedded.runs"] > 10
    (hung,) = _run("benchmarks.hung", "--case", "sleeping", "--hung", "1", "--runs", "3", "--seconds", "0")
    assert (hung["runs"], hung["unfinished"]) == (3, 0)
    assert house.loaded_by_readme().endswith(" files")


def _run(*arguments: str) -> list[dict[str, object] | dict[str, dict[str, float]]]:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=source.ROOT, capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
