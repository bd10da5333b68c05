"""The suite itself: no test can hang for ever, it runs in the background as it does in a terminal, and what failed in the
crowd is run once more alone.
"""

from __future__ import annotations

import os
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


# --- a second chance, which hides nothing ----------------------------------------------------------------------------

STEPS = """
import os, pathlib, pytest

def times(name):
    file = pathlib.Path(__file__).with_name(name)
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    return len(file.read_text())

def test_steady():
    pass
"""

UNSTEADY = """
@pytest.fixture
def ready():
    assert times("s") > 1, "the first time"

@pytest.mark.parametrize("text", ["a b", "]0;[x"])
def test_unsteady(text):
    assert times(text[0]) > 1, "the first time"

def test_unready(ready):
    pass
"""

FAULTS = {
    "fails again": (f"{UNSTEADY}\ndef test_fails():\n    assert False", 1, "1 failed, 3 passed"),
    "is skipped": ("def test_it():\n    if times('t') > 1: pytest.skip()\n    assert False", 1, "1 skipped"),
    "too many": ("@pytest.mark.parametrize('n', range(6))\ndef test_it(n):\n    assert False", 1, "6 failed"),
    "not collected": (f"{UNSTEADY}\nraise ValueError('no test')", 2, "1 error"),
    "interrupted": (f"{UNSTEADY}\ndef test_zz():\n    raise KeyboardInterrupt", 2, "KeyboardInterrupt"),
}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["here", "xdist"])
def test_what_passes_alone_is_named(workers: tuple[str, ...], tmp_path: Path) -> None:
    """And why it failed stands above; the run succeeds."""
    ended = run_again(tmp_path, UNSTEADY, *workers)
    assert ended.returncode == 0, ended.stdout
    second = ended.stdout.partition("3 failed: once more, alone")[2]
    assert second.count("AssertionError: the first time") == 3
    assert second.endswith(
        "unsteady: test_it.py::test_unsteady[a b]\n"
        "unsteady: test_it.py::test_unsteady[]0;[x]\n"
        "unsteady: test_it.py::test_unready\n"
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_every_other_fault_is_one(fault: str, tmp_path: Path) -> None:
    """It fails the run, and nothing is called unsteady."""
    code, status, told = FAULTS[fault]
    ended = run_again(tmp_path, code)
    assert ended.returncode == status, ended.stdout
    assert told in ended.stdout
    assert "unsteady: " not in ended.stdout


@pytest.mark.parametrize(
    "code",
    ["def test_it():\n    if times('t') == 1: os._exit(3)", f"{UNSTEADY}\nraise ValueError('no test')"],
    ids=["a worker crashes", "not collected"],
)
def test_a_worker_that_crashes_is_no_failed_test(code: str, tmp_path: Path) -> None:
    """Nor is a file that it cannot collect."""
    ended = run_again(tmp_path, code, "-n", "1")
    assert ended.returncode == 1, ended.stdout
    assert "once more" not in ended.stdout


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    """A wrong argument would pass everything else."""
    assert run_again(tmp_path, "", "-k", "none").returncode == 5


def run_again(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run what `make test` runs, over one file, and with no more of pytest than it needs."""
    (folder / "test_it.py").write_text(STEPS + code)
    return subprocess.run(
        [sys.executable, ROOT / "tests/again.py", "-q", *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
