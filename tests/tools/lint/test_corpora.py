"""No false positives in the examples, the conformance workflows, the manual and the ported Temporal workflows;
completeness of the rules.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import hourglass._tools.lint
from hourglass._tools.lint import RULES, check

from .project import findings_of

ROOT = Path(__file__).resolve().parents[3]
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)

# These workflows are broken on purpose: the alarm is a true one.
INTENDED_FINDINGS = {
    ("tests/conformance/patches.py", "HG110"),
    ("tests/conformance/test_lifecycle.py", "HG110"),
    ("tests/conformance/unconvertible.py", "HG109"),
}


@pytest.mark.parametrize(
    ("folder", "workflows"), [("examples", 2), ("tests/conformance", 60), ("tests/compat/twins", 50)]
)
def test_linter_reports_nothing_in_correct_workflows(folder: str, workflows: int) -> None:
    report = check([ROOT / folder], base=ROOT)
    assert {(file, code) for file, _, code in findings_of(report)} - INTENDED_FINDINGS == set()
    assert report.workflows >= workflows


def test_linter_reports_nothing_in_the_manual(tmp_path: Path) -> None:
    """Except in the page about the linter, which shows wrong code."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if page.name != "check.md":
            code = "\n".join(_PYTHON.findall(page.read_text()))
            (tmp_path / f"page_{page.stem.lower().replace('-', '_')}.py").write_text(code)
    report = check([tmp_path], base=tmp_path)
    assert findings_of(report) == set()
    assert report.workflows >= 20


def test_linter_imports_only_the_standard_library() -> None:
    folder = Path(hourglass._tools.lint.__file__).parent
    imported = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
    assert imported
    assert {
        name
        for name in imported
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith("hourglass._tools.lint")
    } == set()


def test_every_lint_rule_has_reason_remedy_explanation_and_examples() -> None:
    for rule in RULES.values():
        assert rule.title
        assert rule.reason
        assert rule.remedy
        assert rule.explanation
        if rule.code != "HG001":
            assert rule.wrong != rule.right != ""


def test_check_page_names_every_lint_rule() -> None:
    page = (ROOT / "docs" / "check.md").read_text()
    assert [code for code in RULES if code not in page] == []
