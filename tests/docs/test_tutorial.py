"""The tutorial, followed step by step: its file is written and its commands are executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .test_pages import ROOT, blocks_of

TUTORIAL = ROOT / "docs" / "tutorial.md"
FILES = [block.text for block in blocks_of(TUTORIAL) if block.note == "file: shop.py"]


def run_hourglass(folder: Path, *words: str) -> str:
    """Run a command in the directory, without variables that select a target. Return its output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOURGLASS_", "TEMPORAL_"))
    }
    process = subprocess.run(
        [sys.executable, "-m", "hourglass", *words],
        cwd=folder,
        env={**environment, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("text", FILES, ids=["first", "last"])
def test_tutorial_file_passes_the_linter_with_the_shown_output(text: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(text)
    assert run_hourglass(tmp_path, "check", "shop.py").strip() in TUTORIAL.read_text()


def test_tutorial_commands_print_the_shown_output(tmp_path: Path) -> None:
    """The signal is sent before a worker runs."""
    (tmp_path / "shop.py").write_text(FILES[-1])
    run_hourglass(tmp_path, "start", "checkout", "o-3", "250000", "--id", "order-3")
    run_hourglass(tmp_path, "signal", "approval", "order-3", "Ann")
    printed = run_hourglass(
        tmp_path, "run", "shop.py:checkout", "o-3", "250000", "--id", "order-3", "--quiet"
    )
    assert f"`{printed.strip()}`" in TUTORIAL.read_text()


def test_line_numbers_in_the_tutorial_match_its_file() -> None:
    shown = re.findall(r"at shop\.py:(\d+)\s+(.+)", TUTORIAL.read_text())
    assert shown
    lines = FILES[-1].splitlines()
    assert all(lines[int(number) - 1].strip() == text for number, text in shown)
