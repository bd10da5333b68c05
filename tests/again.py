"""Run pytest, and the few tests that failed once more, alone: `python -m tests.again -q -n 4`, which is what `make test` does.

A test that fails in the crowd and passes alone is unsteady. It is told by name, with why it failed, and the run succeeds.
Whatever else is wrong fails: a test that fails twice, or does not run the second time; more than `MOST` failures; errors of
collecting, nothing collected; a run that was interrupted, or whose worker crashed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

MOST = 5


class FailureCollector:
    """A plugin of pytest's: which tests failed and how, and whether anything failed that is no test."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.is_broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has passed one of its phases, or not."""
        if report.failed:
            self.failures.setdefault(report.nodeid, report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file was collected, or not."""
        self.is_broken |= report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object) -> None:
        """A worker of xdist's has ended, with an error if it crashed."""
        self.is_broken |= error is not None


def main(arguments: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Run pytest with these arguments, and what failed once more; the exit status says what came of it."""
    seen = FailureCollector()
    status = int(pytest.main([*arguments], plugins=[seen]))
    failed = list(seen.failures)
    if status != pytest.ExitCode.TESTS_FAILED or seen.is_broken or not 0 < len(failed) <= MOST:
        return status
    out.write(f"\n{len(failed)} failed: once more, alone\n")
    out.flush()
    if not pass_alone(failed):
        return status
    for text in seen.failures.values():
        out.write(f"\n{text}\n")
    out.write("\n" + "".join(f"unsteady: {each}\n" for each in failed))
    return 0


def pass_alone(tests: Sequence[str]) -> bool:
    """Whether each of these tests passes, one after the other in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", f"--junitxml={report}", *tests]
        if subprocess.run(command, check=False).returncode != 0:
            return False
        cases = ET.parse(report).iter("testcase")
        passed = [
            each for each in cases if not {"failure", "error", "skipped"} & {child.tag for child in each}
        ]
        return len(passed) == len(tests)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
