"""The page *a workflow's way*: made by the tracer, and true to the source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.architecture.trace import SOURCE, STATIONS

from . import source

WAY = Path(__file__).parents[2] / "docs" / "way.md"


def test_every_function_on_the_page_is_in_its_file() -> None:
    """What was renamed or moved since the page was made is found: make it anew, `python -m tests.architecture.trace --page`."""
    place = ""
    passed = 0
    for file, function in re.findall(r"^\| (?:`([^`]+)`)? ?\| `([^`]+)` \|", WAY.read_text(), re.MULTILINE):
        place = file or place
        name = function.rpartition(".")[2]
        assert re.search(rf"\bdef {re.escape(name)}\b", (SOURCE / place).read_text()), f"{place}: {function}"
        passed += 1
    assert passed > 100


def test_the_page_stops_at_every_kind_of_thread() -> None:
    """Your thread, the control loop, a lane, an activity thread, the store thread."""
    text = WAY.read_text()
    assert [title for title, _ in STATIONS.values() if f". {title}\n" not in text] == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_on_the_page_is_there(page: str) -> None:
    """The pages for those who change the source name files that exist."""
    folders = [source.ROOT / each for each in ("src", "tests", "docs")]
    known = [str(path) for folder in folders for path in folder.rglob("*.*")]
    known += [str(path) for path in source.ROOT.glob("*.*")]
    named = set(re.findall(r"`([\w./]+\.(?:py|md|toml))`", (source.ROOT / page).read_text()))
    missing = {each for each in named if not any(path.endswith(f"/{each}") for path in known)}
    assert named
    assert not missing
