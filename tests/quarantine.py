"""Tests that are known to be flaky, by name. Their failures are reported but do not fail the run.

A flaky test is a bug, in the test or in the code under test. No test is retried. A test may be listed here,
with a reason, only while its cause is under investigation, so that it does not hide other failures.
"""

from __future__ import annotations

import pytest

QUARANTINED: dict[str, str] = {}
"""Test ids, as pytest prints them, each with the reason why the test is listed."""

MOST = 5
_MARK = "quarantined: "


def check(table: dict[str, str]) -> None:
    """Raise `UsageError` if the table is too long or an entry has no reason."""
    if len(table) > MOST:
        raise pytest.UsageError(f"tests/quarantine.py lists {len(table)} tests; at most {MOST} are allowed")
    if unexplained := [name for name, reason in table.items() if not reason.strip()]:
        raise pytest.UsageError(f"tests/quarantine.py has no reason for {', '.join(unexplained)}")


def excuse(report: pytest.TestReport, table: dict[str, str]) -> None:
    """Report the failure of a quarantined test as an expected failure, with the reason from the table."""
    if report.failed and report.nodeid in table:
        report.outcome = "skipped"
        report.wasxfail = _MARK + table[report.nodeid]


def summarize(terminal: pytest.TerminalReporter) -> None:
    """Print the quarantined tests that failed, with their failures, at the end of the run."""
    failed = [report for report in terminal.stats.get("xfailed", []) if report.wasxfail.startswith(_MARK)]
    if failed:
        terminal.section(f"{len(failed)} quarantined tests failed", yellow=True)
        for report in failed:
            terminal.write_line(report.longreprtext)
            terminal.write_line(f"{report.nodeid}: {report.wasxfail}")
