"""The suite itself: no test can hang for ever, and it runs in the background as it does in a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HANGS = """
import threading

def wait_in_vain():
    threading.Event().wait()

def test_hangs():
    threading.Thread(target=wait_in_vain, name="another", daemon=True).start()
    threading.Event().wait()
"""

HANGS_ON = """
import threading

def test_hangs_on():
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()
"""


def run_pytest(*arguments: object, before: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, with this project's settings, after some words to the shell."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    return subprocess.run(
        ["sh", "-c", f'{before}exec "$@"', "sh", *command],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    """One that fails it, and a later one that ends its process."""
    limit = float(pytestconfig.getini("timeout"))
    assert limit > 0
    assert float(pytestconfig.getini("faulthandler_timeout")) > limit
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True


def test_a_test_that_hangs_fails_and_shows_all_stacks(tmp_path: Path) -> None:
    """The stack of the test, and those of the other threads."""
    file = tmp_path / "test_it.py"
    file.write_text(HANGS)
    ended = run_pytest("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "--timeout", 1, file)
    assert ended.returncode == 1, ended.stdout
    assert "1 failed" in ended.stdout
    for stack in ("test_hangs", "wait_in_vain"):
        assert stack in ended.stdout


def test_a_test_that_hangs_on_ends_its_process(tmp_path: Path) -> None:
    """It hangs again while it is being failed: the stacks are shown all the same."""
    file = tmp_path / "test_it.py"
    file.write_text(HANGS_ON)
    limits = ("--timeout", 1, "--override-ini", "faulthandler_timeout=2")
    ended = run_pytest("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, *limits, file)
    assert ended.returncode != 0
    assert "test_hangs_on" in ended.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_suite_runs_where_sigint_is_ignored() -> None:
    """As in any job in the background: tests that interrupt a program of theirs still do."""
    named = "tests/client/test_portal.py::test_ctrl_c_interrupts_a_call"
    ended = run_pytest("--timeout", 30, named, before="trap '' INT; ")
    assert ended.returncode == 0, ended.stdout
