"""`hourglass check`: what people see, what programs read, exit codes."""

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

from .project import write

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
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current directory, with one finding behind two calls."""
    write(tmp_path, SHOP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text_output_shows_line_reason_and_remedy(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The source line with a caret, why, what instead, and the way from the workflow; exit code 1."""
    assert main(["check"]) == 1
    assert capsys.readouterr().out == PRETTY


def test_no_findings(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0, and how much was looked at."""
    (shop / "shop" / "prices.py").write_text("def price(order): return order\n")
    assert main(["check", "shop"]) == 0
    assert capsys.readouterr().out == "no findings in 3 files, 1 workflow\n"


def test_missing_workflows_are_reported(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A check of the wrong folder does not look like a clean one."""
    assert main(["check", "shop/prices.py"]) == 0
    assert capsys.readouterr().out == "no workflows found in 1 file\n"


def test_json_output_is_one_document(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One document with everything in it."""
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


def test_github_annotations(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One annotation for each finding, on one line, with everything escaped that GitHub would take for its own."""
    (shop / "a,b.py").write_text("def (\n")
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
def test_every_rule_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain` says what a rule is about, and how to keep a place as it is."""
    assert main(["check", "--explain", code.lower()]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{code} {RULES[code].title}\n")
    assert f"# hourglass: allow {code}" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "file or directory nowhere does not exist"),
        (["--explain", "HG999"], "unknown rule HG999; known rules: HG001, HG101"),
        (["--json", "--github"], "use either --json or --github"),
        (["--what"], "--what"),
    ],
)
def test_wrong_arguments_are_rejected(
    arguments: list[str], said: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message and exit code 2."""
    assert main(["check", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_unparsable_file_fails_the_check(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be checked is no success."""
    (shop / "shop" / "prices.py").write_text("def price(order:\n    return 1\n")
    assert main(["check"]) == 1
    said = capsys.readouterr().out
    assert "shop/prices.py:1:10 HG001 file cannot be read" in said
    assert "  1 | def price(order:\n    |          ^\n" in said
    assert "'(' was never closed" in said


def test_narrow_terminal_keeps_the_caret(shop: Path) -> None:
    """In a process of its own, with 40 columns and no colour: no traceback, no escape codes, the same findings."""
    done = subprocess.run(
        [sys.executable, "-m", "hourglass", "check"],
        cwd=shop,
        env={**os.environ, "COLUMNS": "40", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stdout == PRETTY
    assert done.stderr == ""


def test_linter_loads_neither_engine_nor_project(shop: Path) -> None:
    """Checking imports nothing of the project, nor of our engine: it is quick, and safe on code that is not trusted."""
    (shop / "shop" / "__init__.py").write_text("raise SystemExit('imported')\n")
    code = (
        "import sys; from hourglass._tools.cli import main; main(['check', '.']); "
        "sys.exit(' '.join(n for n in sys.modules if n.startswith(('shop', 'temporalio', 'hourglass._evaluator'))) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=shop, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "1 finding" in done.stdout


def test_pre_commit_hook() -> None:
    """The hook runs the command that exists, on the whole project, with the packages that the command needs."""
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    values = dict(re.findall(r"^[- ] (\w+): (.+)$", text, re.M))
    assert values["id"] == "hourglass-check"
    assert values["entry"] == "hourglass check"
    assert values["language"] == "python"
    assert values["pass_filenames"] == "false"
    assert "typer" in values["additional_dependencies"]
    assert "rich" in values["additional_dependencies"]
