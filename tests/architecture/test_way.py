"""The page *a workflow's way*: made by the tracer, and true to the source."""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path

import pytest
from tests.architecture.trace import SOURCE, STATIONS, Call, Trace, Turns, page_of_most
from tests.waiting import PATIENCE, until

from . import source

WAY = Path(__file__).parents[2] / "docs" / "way.md"


def test_every_function_on_the_step_page_exists() -> None:
    """What was renamed or moved since the page was made is found: make it anew, `python -m tests.architecture.trace --page`."""
    place = ""
    passed = 0
    for file, function in re.findall(r"^\| (?:`([^`]+)`)? ?\| `([^`]+)` \|", WAY.read_text(), re.MULTILINE):
        place = file or place
        name = function.rpartition(".")[2]
        assert re.search(rf"\bdef {re.escape(name)}\b", (SOURCE / place).read_text()), f"{place}: {function}"
        passed += 1
    assert passed > 100


def test_step_page_covers_every_kind_of_thread() -> None:
    """Your thread, the control loop, a lane, an activity thread, the store thread."""
    text = WAY.read_text()
    assert [title for title, _ in STATIONS.values() if f". {title}\n" not in text] == []


def test_traced_threads_run_in_a_fixed_order() -> None:
    """Whoever waits gives the turn up, and of those that have arrived the first in the row goes on, whatever came first."""
    turns, said = Turns(patience=PATIENCE), []
    turns.take()

    def work() -> None:
        arrived.release()
        turns.take()
        said.append(threading.current_thread().name)
        turns.give_up()

    arrived = threading.Semaphore(0)
    names = ["hourglass-store", "hourglass-activity-1", "hourglass-lane-1", "hourglass-control"]
    threads = [threading.Thread(target=work, name=name) for name in names]
    for thread in threads:
        thread.start()
        arrived.acquire()
    until(lambda: turns.waiting == len(names))
    assert said == []
    turns.give_up()
    for thread in threads:
        thread.join()
    assert said == names[::-1]


def test_step_page_shows_the_most_common_trace() -> None:
    """What one of several executions passes beside or before the others is not on it."""
    place = "client/_blocking.py"
    first, second, third, odd = (
        Call("MainThread", place, name, line)
        for name, line in sorted(_documented(place).items(), key=lambda each: each[1])[:4]
    )
    usual = Trace([first, second, third])
    made = page_of_most([usual, Trace([odd, third, second, first]), usual])
    assert re.findall(r"`([\w.]+)` \|", made.partition("|---|")[2]) == [
        each.function for each in (first, second, third)
    ]


def _documented(place: str) -> dict[str, int]:
    """Names and lines of functions that have a docstring."""
    tree = ast.parse((SOURCE / place).read_text())
    return {
        node.name: node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and not node.decorator_list
    }


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_on_the_step_page_exists(page: str) -> None:
    """The pages for those who change the source name files that exist."""
    folders = [source.ROOT / each for each in ("src", "tests", "docs")]
    known = [str(path) for folder in folders for path in folder.rglob("*.*")]
    known += [str(path) for path in source.ROOT.glob("*.*")]
    named = set(re.findall(r"`([\w./]+\.(?:py|md|toml))`", (source.ROOT / page).read_text()))
    missing = {each for each in named if not any(path.endswith(f"/{each}") for path in known)}
    assert named
    assert not missing
