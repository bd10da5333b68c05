"""mypy and pyright accept correct uses of the API, infer the right types, and report exactly the wrong uses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD = tuple(HERE / f"good_{what}uses.py" for what in ("", "testing_", "limits_", "observing_", "aio_"))
BAD = {
    HERE / "bad_uses.py": 50,
    HERE / "bad_testing_uses.py": 20,
    HERE / "bad_limits_uses.py": 20,
    HERE / "bad_observing_uses.py": 15,
    HERE / "bad_aio_uses.py": 15,
}
"""Files with wrong uses. Each has more wrong lines than this number."""
ALL = [str(path) for path in (*GOOD, *BAD)]

Reports = dict[Path, dict[int, str]]
"""The lines that a checker reports in each file, with its messages."""


def _run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: errors were found
    return done.stdout


def mypy() -> Reports:
    """Return the errors of mypy in strict mode."""
    reports: Reports = {Path(path): {} for path in ALL}
    flags = ("--strict", "--output", "json", "--follow-imports", "silent")
    for line in _run(sys.executable, "-m", "mypy", *flags, *ALL).splitlines():
        found = json.loads(line)
        if found["severity"] == "error":
            reports[ROOT / found["file"]][found["line"]] = found["message"]
    return reports


def pyright() -> Reports:
    """Return the errors of pyright."""
    reports: Reports = {Path(path): {} for path in ALL}
    flags = ("--outputjson", "--pythonpath", sys.executable)
    for found in json.loads(_run(sys.executable, "-m", "pyright", *flags, *ALL))["generalDiagnostics"]:
        if found["severity"] == "error":
            reports[Path(found["file"])][found["range"]["start"]["line"] + 1] = found["message"]
    return reports


@pytest.fixture(scope="module", params=[mypy, pyright], ids=lambda checker: checker.__name__)
def reports(request: pytest.FixtureRequest) -> Reports:
    """Return the errors of one checker in all files."""
    checker: Callable[[], Reports] = request.param
    return checker()


@pytest.mark.parametrize("good", GOOD, ids=lambda path: path.stem)
def test_correct_uses_of_the_api_pass_mypy_and_pyright(reports: Reports, good: Path) -> None:
    assert reports[good] == {}


@pytest.mark.parametrize("bad", BAD, ids=lambda path: path.stem)
def test_wrong_uses_of_the_api_are_reported_by_mypy_and_pyright(reports: Reports, bad: Path) -> None:
    lines = bad.read_text().splitlines()
    wrong = {at for at, line in enumerate(lines, 1) if line.endswith("# E")}
    assert len(wrong) > BAD[bad]
    unexpected = {at: text for at, text in reports[bad].items() if at not in wrong}
    missed = {at: lines[at - 1].strip() for at in wrong - set(reports[bad])}
    assert (unexpected, missed) == ({}, {})
