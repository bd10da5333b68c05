"""The tutorial, followed as a reader would: its file is written, its commands are typed."""

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


def hourglass(folder: Path, *words: str) -> str:
    """What the command prints, typed in this folder with nothing set that would lead it elsewhere."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HOURGLASS_", "TEMPORAL_"))
    }
    done = subprocess.run(
        [sys.executable, "-m", "hourglass", *words],
        cwd=folder,
        env={**environment, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("text", FILES, ids=["first", "last"])
def test_tutorial_passes_the_linter(text: str, tmp_path: Path) -> None:
    """The file passes the check that the tutorial types, with the words that it prints there."""
    (tmp_path / "shop.py").write_text(text)
    assert hourglass(tmp_path, "check", "shop.py").strip() in TUTORIAL.read_text()


def test_tutorial_run_prints_the_shown_output(tmp_path: Path) -> None:
    """A signal that came before anybody worked is there when the workflow runs; its result is the tutorial's."""
    (tmp_path / "shop.py").write_text(FILES[-1])
    hourglass(tmp_path, "start", "checkout", "o-3", "250000", "--id", "order-3")
    hourglass(tmp_path, "signal", "approval", "order-3", "Ann")
    printed = hourglass(tmp_path, "run", "shop.py:checkout", "o-3", "250000", "--id", "order-3", "--quiet")
    assert f"`{printed.strip()}`" in TUTORIAL.read_text()


def test_lines_shown_in_the_tutorial_match_the_file() -> None:
    """Where `why` names a line of the file, that line stands there."""
    shown = re.findall(r"at shop\.py:(\d+)\s+(.+)", TUTORIAL.read_text())
    assert shown
    lines = FILES[-1].splitlines()
    assert all(lines[int(number) - 1].strip() == text for number, text in shown)
