"""What `make house` and the scripts of `benchmarks` count is what they say that they count."""

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


def test_prose_habits_are_counted() -> None:
    """Docstrings, their openings, words of habit and odd names are counted as they occur; a banner is no prose."""
    found = prose.measure(TEXT)
    assert (found.docstrings, found.openings, found.names) == (4, 2, 3)
    assert found.habits == {"clause": 2, "tell": 2, "vague": 1, "idiom": 1}
    assert found.words == 5 + 7 + 6 + 3 + 5


def test_prose_counts_of_parts_add_up() -> None:
    """The last row is the sum of the others."""
    rows = prose.by_package(source.modules()[::20])
    total = rows.pop("all")
    assert len(rows) > 5
    assert total.words == sum(row.words for row in rows.values())
    assert total.docstrings == sum(row.docstrings for row in rows.values())


def test_complexity_counts_branches() -> None:
    """One for a function, and one for each loop, condition, comprehension and operand."""
    assert house.complexity(ast.parse(TEXT)) == 1 + 1 + 1 + 2 + 1 + 1


def test_banners_are_counted() -> None:
    """A line of dashes in a comment is a banner."""
    assert len(house.BANNER.findall(TEXT)) == 1


@pytest.mark.parametrize(
    ("module", "deep"),
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
def test_seam_modules_are_not_private(module: str, deep: bool) -> None:
    """A private module is deep unless it is one of the seams; of a facade only what it exports is one."""
    assert internals.is_deep(module) is deep


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


def test_names_used_by_test_functions_are_found() -> None:
    """A test uses what it names, and what functions, fixtures and constants of its file name that it uses."""
    file = internals.TestFile(internals.TESTS / "runtime" / "test_it.py", SUITE)
    assert {test: file.used_by(test) for test in file.tests} == {
        "test_through_a_constant": {"Lane"},
        "test_through_a_fixture": {"Lane"},
        "test_public": {"Client"},
        "test_with_a_helper": {"made"},
    }


def test_private_names_used_by_test_files_are_found() -> None:
    """Names that a helper hands on count, what a helper does inside does not."""
    assert "test_total_journal_size_is_limited" in internals.deep_functions(
        source.ROOT / "tests/scale/test_worker_parts.py"
    )
    assert internals.deep_functions(source.ROOT / "tests/interop/test_interop.py") == []
    assert internals._comes_from_deep("tests.worker.handles.scripted", "BridgeHolder")
    assert not internals._comes_from_deep("tests.worker.handles.scripted", "ScriptedHandle")


def test_measure_scripts_print_figures(tmp_path: Path) -> None:
    """The scripts print figures: calls per step in memory and on a file, and runs beside one that hangs."""
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
