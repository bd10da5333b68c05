"""The example that explores a checkout: it passes, and finds a bug that is added."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .conftest import EXAMPLES


def _pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    return subprocess.run(
        [*command, str(folder / "test_checkout_explored.py")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_explored_checkout_example_passes() -> None:
    process = _pytest(EXAMPLES)
    assert process.returncode == 0, process.stdout + process.stderr


def test_explored_checkout_example_finds_an_added_bug(tmp_path: Path) -> None:
    """The checkout then ships before it has charged."""
    for name in ("checkout.py", "test_checkout_explored.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    program = (tmp_path / "checkout.py").read_text()
    paid = next(line for line in program.splitlines() if "= charge(order.id" in line)
    broken = program.replace(paid, f"    workflow.spawn(ship, order.items[0])\n{paid}")
    assert broken != program
    (tmp_path / "checkout.py").write_text(broken)
    process = _pytest(tmp_path)
    assert process.returncode == 1
    assert "shipped, and not paid" in process.stdout
    assert "repeat: the same call with story=" in process.stdout
