"""Every bug of the catalogue is detected by the tools that should detect it, and the report names the line."""

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


def _name(bug: Bug) -> str:
    return bug.name


def test_every_bug_of_the_catalogue_is_detected_by_a_tool() -> None:
    assert len(BUGS) >= 20
    assert [bug.name for bug in BUGS if not bug.marks] == []
    assert [net for net in NETS if not caught_by(net)] == []


# --- before the run --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report() -> CheckReport:
    """The linter's report on the whole catalogue."""
    return check([FOLDER], base=FOLDER)


def test_linter_reports_exactly_the_marked_lines(report: CheckReport) -> None:
    reported = {
        (finding.code, FOLDER / finding.place.file, finding.place.line) for finding in report.findings
    }
    marks = [mark for bug in BUGS for mark in bug.marks if mark.net == "check"]
    assert reported == {(mark.code, mark.file, mark.line) for mark in marks}


def test_linter_misses_only_bugs_that_are_code_changes(report: CheckReport) -> None:
    unseen = [bug.name for bug in BUGS if not bug.places("check")]
    assert unseen == ["changed_argument", "changed_order", "changed_timer", "removed_activity"]


def test_linter_shows_call_path_across_modules(report: CheckReport) -> None:
    (clock_call,) = [finding for finding in report.findings if finding.place.file == "far/moments.py"]
    assert [(step.function, step.file) for step in clock_call.path] == [
        ("far_away", "far_away.py"),
        ("price", "far_away.py"),
        ("surcharge", "far/pricing.py"),
    ]


# --- during the run --------------------------------------------------------------------------------------------------


def _parking_error(bug: Bug, folder: Path, **options: Any) -> BaseException:
    """Run the bug until the environment parks it; return the error."""
    (folder / "prices.txt").write_text("100")
    (folder / "inbox").mkdir()
    with server(folder, "hello"), Environment(**options) as environment:
        handle = environment.start_workflow(bug.workflow, *bug.arguments(folder))
        bug.option("DRIVERS", lambda *_: None)(environment, handle)
        with pytest.raises(WorkflowParked) as parked:
            handle.result()
    assert parked.value.__cause__ is not None
    return parked.value.__cause__


@pytest.mark.parametrize("bug", caught_by("watch"), ids=_name)
def test_call_watcher_reports_exactly_the_marked_lines(bug: Bug, tmp_path: Path) -> None:
    error = _parking_error(bug, tmp_path, watch="error", verify="off")
    assert isinstance(error, DeterminismError)
    named = {(Path(file), int(line)) for file, line in re.findall(r"([^ ;]+\.py):(\d+) calls", str(error))}
    assert named == bug.places("watch")


@pytest.mark.parametrize("bug", caught_by("verify"), ids=_name)
def test_verification_reports_the_marked_line(bug: Bug, tmp_path: Path) -> None:
    error = _parking_error(bug, tmp_path, watch="off", verify="always")
    assert isinstance(error, NondeterminismError)
    assert (Path(error.file), error.line) in bug.places("verify")


@pytest.mark.parametrize("bug", caught_by("parked"), ids=_name)
def test_deterministic_bug_parks_run_at_the_marked_line(bug: Bug, tmp_path: Path) -> None:
    error = _parking_error(bug, tmp_path, watch="off", verify="always")
    lines = set()
    trace = error.__traceback__
    while trace is not None:
        lines.add((Path(trace.tb_frame.f_code.co_filename), trace.tb_lineno))
        trace = trace.tb_next
    assert isinstance(error, RuntimeError)
    assert lines & bug.places("parked")


# --- after the run ---------------------------------------------------------------------------------------------------


def _run_recording_program(command: str, folder: Path, seed: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "determinism.recording", command, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Verdicts on histories that one process recorded and another replayed."""
    folder = tmp_path_factory.mktemp("catalogue")
    _run_recording_program("record", folder, "1", CATALOGUE="first")
    _run_recording_program("replay", folder, "2")
    by_name: dict[str, dict[str, Any]] = json.loads((folder / "verdicts.json").read_text())
    return by_name


@pytest.mark.parametrize("bug", caught_by("replay"), ids=_name)
def test_replay_in_another_process_reports_the_marked_line(
    bug: Bug, verdicts: dict[str, dict[str, Any]]
) -> None:
    verdict = verdicts[bug.name]
    assert verdict["caught"], bug.name
    assert (Path(verdict["file"]), verdict["line"]) in bug.places("replay"), verdict["told"]
