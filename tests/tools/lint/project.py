"""A small project on disk from a text, and what a check finds in it, next to what its comments expect.

    --- app.py
    @workflow.defn
    def flow():
        time.time()  # HG101

A line that is to be found ends with its codes as a comment. Every file begins with the same imports, so that cases are short.
"""

from __future__ import annotations

import re
from pathlib import Path

from hourglass._tools.lint import CheckReport, check

HEADER = "from hourglass import activity, workflow\n"
_FILE = re.compile(r"^--- (\S+)\n", re.M)
_CODES = re.compile(r"#\s*((?:HG\d+[ ,]*)+)$")

Findings = set[tuple[str, int, str]]


def write_project(folder: Path, text: str) -> None:
    """Write the files of a project. A text without file names becomes `app.py`."""
    parts = _FILE.split(text.strip("\n") if text.lstrip().startswith("---") else f"--- app.py\n{text}")
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEADER + content)


def check_text(folder: Path, text: str) -> CheckReport:
    write_project(folder, text)
    return check([folder], base=folder)


def findings_of(report: CheckReport) -> Findings:
    """Return file, line and code of each finding."""
    return {(each.place.file, each.place.line, each.code) for each in report.findings}


def marked_findings(folder: Path) -> Findings:
    """Return the findings that the comments in a project mark."""
    return {
        (str(path.relative_to(folder)), number, code)
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := _CODES.search(line))
        for code in re.findall(r"HG\d+", match[1])
    }
