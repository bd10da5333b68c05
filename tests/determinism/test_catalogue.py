"""Every bug of the catalogue is caught by the nets that should catch it, and the report names the line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hourglass._tools.lint import CheckReport, check
from hourglass.errors import DeterminismError, NondeterminismError, WorkflowParked
from hourglass.testing import Environment

from .nets import BUGS, FOLDER, NETS, Bug, caught_by
from .recording import server

ROOT = Path(__file__).parents[1]


def _ids(bug: Bug) -> str:
    return bug.name


def test_every_bug_of_the_catalogue_is_caught() -> None:
    """No bug is in the catalogue that no net catches, and no net that catches nothing."""
    assert len(BUGS) >= 20
    assert [bug.name for bug in BUGS if not bug.marks] == []
    assert [net for net in NETS if not caught_by(net)] == []


# --- before the run --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> CheckReport:
    """What the linter says about the whole catalogue."""
    return check([FOLDER], base=FOLDER)


@pytest.mark.parametrize("bug", BUGS, ids=_ids)
def test_check_reports_exactly_the_marked_lines(bug: Bug, report: CheckReport) -> None:
    """The linter finds every marked line with its code, and nothing else in the file."""
    files = {mark.file for mark in bug.marks} | {FOLDER / f"{bug.name}.py"}
    found = {
        (each.code, FOLDER / each.place.file, each.place.line)
        for each in report.findings
        if FOLDER / each.place.file in files
    }
    assert found == {(mark.code, mark.file, mark.line) for mark in bug.marks if mark.net == "check"}


def test_check_finds_most_bugs(report: CheckReport) -> None:
    """What is no change of code can be seen in the code."""
    unseen = [bug.name for bug in BUGS if not bug.places("check")]
    assert unseen == ["changed_argument", "changed_order", "changed_timer", "removed_activity"]


def test_check_shows_the_call_path_across_modules(report: CheckReport) -> None:
    """A clock behind two calls in another package is told with every call on the way, the workflow first."""
    (found,) = [each for each in report.findings if each.place.file == "far/moments.py"]
    assert [(step.function, step.file) for step in found.path] == [
        ("bug", "far_away.py"),
        ("price", "far_away.py"),
        ("surcharge", "far/pricing.py"),
    ]


# --- during the run --------------------------------------------------------------------------------------------------


def _run(bug: Bug, folder: Path, **options: Any) -> BaseException:
    """Run a bug in an environment that must park it; returns why."""
    (folder / "prices.txt").write_text("100")
    (folder / "inbox").mkdir()
    with server(folder, "hello"), Environment(**options) as environment:
        handle = environment.start_workflow(bug.module.bug, *bug.arguments(folder))
        if hasattr(bug.module, "drive"):
            bug.module.drive(environment, handle)
        with pytest.raises(WorkflowParked) as parked:
            handle.result()
    assert parked.value.__cause__ is not None
    return parked.value.__cause__


@pytest.mark.parametrize("bug", caught_by("watch"), ids=_ids)
def test_call_watcher_names_the_lines(bug: Bug, tmp_path: Path) -> None:
    """The call watcher parks the run and names the marked lines of the author's, and no other."""
    error = _run(bug, tmp_path, watch="error", verify="off")
    assert isinstance(error, DeterminismError)
    named = {(Path(file), int(line)) for file, line in re.findall(r"([^ ;]+\.py):(\d+) calls", str(error))}
    assert named == bug.places("watch")


@pytest.mark.parametrize("bug", caught_by("verify"), ids=_ids)
def test_verification_names_the_line(bug: Bug, tmp_path: Path) -> None:
    """The second execution asks for something else, and the error names where."""
    error = _run(bug, tmp_path, watch="off", verify="always")
    assert isinstance(error, NondeterminismError)
    assert (Path(error.file), error.line) in bug.places("verify")


@pytest.mark.parametrize("bug", caught_by("parked"), ids=_ids)
def test_deterministic_bugs_park_at_the_marked_line(bug: Bug, tmp_path: Path) -> None:
    """What is deterministic and wrong parks the run with Python's own error, at the marked line."""
    error = _run(bug, tmp_path, watch="off", verify="always")
    lines = set()
    trace = error.__traceback__
    while trace is not None:
        lines.add((Path(trace.tb_frame.f_code.co_filename), trace.tb_lineno))
        trace = trace.tb_next
    assert isinstance(error, RuntimeError)
    assert lines & bug.places("parked")


# --- after the run ---------------------------------------------------------------------------------------------------


def _process(what: str, folder: Path, seed: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "determinism.recording", what, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Histories recorded by one process and replayed by another."""
    folder = tmp_path_factory.mktemp("catalogue")
    _process("record", folder, "1", CATALOGUE="first")
    _process("replay", folder, "2")
    found: dict[str, dict[str, Any]] = json.loads((folder / "verdicts.json").read_text())
    return found


@pytest.mark.parametrize("bug", caught_by("replay"), ids=_ids)
def test_replay_names_the_line(bug: Bug, verdicts: dict[str, dict[str, Any]]) -> None:
    """A recorded history does not fit in another process, or with the changed code, and the error names where."""
    verdict = verdicts[bug.name]
    assert verdict["caught"], bug.name
    assert (Path(verdict["file"]), verdict["line"]) in bug.places("replay"), verdict["told"]
