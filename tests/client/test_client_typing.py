"""Type checkers accept what is right about a client's calls and refuse what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = Path(__file__).with_name("typed_calls.py")
ROOT = CALLS.parents[2]


@pytest.mark.parametrize(
    "checker",
    [
        ["mypy", "--strict", "--follow-imports=silent"],
        ["pyright", "--pythonpath", sys.executable],
    ],
    ids=["mypy", "pyright"],
)
def test_exactly_the_marked_lines_are_errors(checker: list[str]) -> None:
    """mypy and pyright report an error on each line marked E, and on no other."""
    pytest.importorskip(checker[0])
    marked = {number for number, line in enumerate(CALLS.read_text().splitlines(), 1) if line.endswith("# E")}
    done = subprocess.run(
        [sys.executable, "-m", *checker, str(CALLS)], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    found = {int(number) for number in re.findall(r"typed_calls\.py:(\d+):.*error", done.stdout)}
    assert marked
    assert found == marked, done.stdout + done.stderr
