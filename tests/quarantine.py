"""Tests that are known to fail now and then, by name: a failure is reported, and does not fail the run.

A test that fails once is a fault, in the test or in what it tests: find it. Nothing is run a second time. Only while its cause is
being looked for may a test stand here, with its reason, so that other failures are seen.
"""

from __future__ import annotations

import pytest

QUARANTINED: dict[str, str] = {}
"""Ids of tests, as pytest prints them, with the reason."""

MOST = 5
_MARK = "quarantined: "


def check(table: dict[str, str]) -> None:
    """Raise `UsageError` if the table is too long or an entry has no reason."""
    if len(table) > MOST:
        raise pytest.UsageError(f"tests/quarantine.py holds {len(table)} tests; at most {MOST} may be there")
    if silent := [name for name, reason in table.items() if not reason.strip()]:
        raise pytest.UsageError(f"tests/quarantine.py has no reason for {', '.join(silent)}")


def excuse(report: pytest.TestReport, table: dict[str, str]) -> None:
    """Make the failure of a quarantined test an expected one, with its reason."""
    if report.failed and report.nodeid in table:
        report.outcome = "skipped"
        report.wasxfail = _MARK + table[report.nodeid]


def summarize(terminal: pytest.TerminalReporter) -> None:
    """Name the quarantined tests that failed, with the failure, at the end of the run."""
    failed = [each for each in terminal.stats.get("xfailed", []) if each.wasxfail.startswith(_MARK)]
    if failed:
        terminal.section(f"{len(failed)} failed in quarantine", yellow=True)
        for report in failed:
            terminal.write_line(report.longreprtext)
            terminal.write_line(f"{report.nodeid}: {report.wasxfail}")
