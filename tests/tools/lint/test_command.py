"""`hourglass check`: text, JSON and GitHub output, and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import main
from hourglass._tools.lint import RULES

from .project import write_project

ROOT = Path(__file__).resolve().parents[3]

SHOP = """
--- shop/__init__.py
--- shop/flows.py
from shop.prices import price
@workflow.defn
def checkout(order):
    return price(order)
--- shop/prices.py
import time
def price(order):
    return stamped(order)
def stamped(order):
    return order, time.time(), 100%3, "a,b:c"
"""

PRETTY = """\
shop/prices.py:6:19 HG101 reads a clock
  6 | return order, time.time(), 100%3, "a,b:c"
    |               ^^^^^^^^^^^
  time.time() reads a clock; the time differs when the code is executed again
  instead: use workflow.now() or workflow.time()
  in workflow checkout (shop/flows.py:4) → price (shop/flows.py:5) → stamped (shop/prices.py:4)

1 finding in 3 files, 1 workflow
"""


@pytest.fixture
def project_with_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current directory with one finding behind two calls."""
    write_project(tmp_path, SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_prints_source_line_reason_remedy_and_call_path(
    project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 1
    assert capsys.readouterr().out == PRETTY


def test_check_without_findings_prints_counts_and_exits_with_0(
    project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project_with_finding / "shop" / "prices.py").write_text("def price(order): return order\n")
    assert main(["check", "shop"]) == 0
    assert capsys.readouterr().out == "no findings in 3 files, 1 workflow\n"


def test_check_reports_files_without_workflows(
    project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check of the wrong directory must not look successful."""
    assert main(["check", "shop/prices.py"]) == 0
    assert capsys.readouterr().out == "no workflows found in 1 file\n"


def test_check_json_output_is_one_document(
    project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--json", "shop"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["files"], document["workflows"]) == (3, 1)
    (finding,) = document["findings"]
    assert finding == {
        "code": "HG101",
        "title": "reads a clock",
        "message": "time.time() reads a clock",
        "reason": RULES["HG101"].reason,
        "remedy": RULES["HG101"].remedy,
        "file": "shop/prices.py",
        "line": 6,
        "column": 19,
        "end_line": 6,
        "end_column": 30,
        "workflow": "checkout",
        "path": [
            {"function": "checkout", "file": "shop/flows.py", "line": 4},
            {"function": "price", "file": "shop/flows.py", "line": 5},
            {"function": "stamped", "file": "shop/prices.py", "line": 4},
        ],
    }


def test_check_github_output_has_one_escaped_annotation_per_finding(
    project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project_with_finding / "a,b.py").write_text("def (\n")
    assert main(["check", "--github"]) == 1
    broken, found = capsys.readouterr().out.splitlines()
    assert broken.startswith("::error file=a%2Cb.py,line=1,col=5,endLine=1,endColumn=6,title=HG001 ")
    assert found == (
        "::error file=shop/prices.py,line=6,col=19,endLine=6,endColumn=30,title=HG101 reads a clock::"
        "time.time() reads a clock; the time differs when the code is executed again%0A"
        "Instead: use workflow.now() or workflow.time()%0A"
        "in workflow checkout (shop/flows.py:4) → price (shop/flows.py:5) → stamped (shop/prices.py:4)"
    )


@pytest.mark.parametrize("code", RULES)
def test_check_explain_describes_every_rule(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--explain", code.lower()]) == 0
    message = capsys.readouterr().out
    assert message.startswith(f"{code} {RULES[code].title}\n")
    assert f"# hourglass: allow {code}" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "file or directory nowhere does not exist"),
        (["--explain", "HG999"], "unknown rule HG999; known rules: HG001, HG101"),
        (["--json", "--github"], "use either --json or --github"),
        (["--what"], "--what"),
    ],
)
def test_check_rejects_invalid_arguments_with_exit_code_2(
    arguments: list[str], message: str, project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_check_fails_on_an_unparsable_file(
    project_with_finding: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project_with_finding / "shop" / "prices.py").write_text("def price(order:\n    return 1\n")
    assert main(["check"]) == 1
    message = capsys.readouterr().out
    assert "shop/prices.py:1:10 HG001 file cannot be read" in message
    assert "  1 | def price(order:\n    |          ^\n" in message
    assert "'(' was never closed" in message


def test_check_output_is_unchanged_in_a_narrow_terminal(project_with_finding: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "hourglass", "check"],
        cwd=project_with_finding,
        env={**os.environ, "COLUMNS": "40", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 1
    assert process.stdout == PRETTY
    assert process.stderr == ""


def test_check_imports_neither_the_engine_nor_the_project(project_with_finding: Path) -> None:
    """It must be fast, and safe for untrusted code."""
    (project_with_finding / "shop" / "__init__.py").write_text("raise SystemExit('imported')\n")
    code = (
        "import sys; from hourglass._tools.cli import main; main(['check', '.']); "
        "sys.exit(' '.join(n for n in sys.modules if n.startswith(('shop', 'temporalio', 'hourglass._evaluator'))) or None)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=project_with_finding, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    assert "1 finding" in process.stdout


def test_pre_commit_hook_runs_hourglass_check_on_the_whole_project() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    values = dict(re.findall(r"^[- ] (\w+): (.+)$", text, re.M))
    assert values["id"] == "hourglass-check"
    assert values["entry"] == "hourglass check"
    assert values["language"] == "python"
    assert values["pass_filenames"] == "false"
    assert "typer" in values["additional_dependencies"]
    assert "rich" in values["additional_dependencies"]
