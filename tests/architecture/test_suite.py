"""The test suite itself: time limits, ignored signals, and the quarantine of flaky tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import quarantine

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
    """Run pytest in a subprocess with this project's settings; `before` is shell code that runs first."""
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


def test_pytest_timeout_precedes_the_faulthandler_timeout(pytestconfig: pytest.Config) -> None:
    """The first fails the test, the second ends its process."""
    limit = float(pytestconfig.getini("timeout"))
    assert limit > 0
    assert float(pytestconfig.getini("faulthandler_timeout")) > limit
    assert pytestconfig.getini("faulthandler_exit_on_timeout") is True


def test_hanging_test_fails_and_shows_all_stacks(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(HANGS)
    ended = run_pytest("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "--timeout", 1, file)
    assert ended.returncode == 1, ended.stdout
    assert "1 failed" in ended.stdout
    for stack in ("test_hangs", "wait_in_vain"):
        assert stack in ended.stdout


def test_hang_in_the_cleanup_of_a_test_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(HANGS_ON)
    limits = ("--timeout", 1, "--override-ini", "faulthandler_timeout=2")
    ended = run_pytest("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, *limits, file)
    assert ended.returncode != 0
    assert "test_hangs_on" in ended.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_interrupting_tests_pass_in_a_background_job() -> None:
    """A background job ignores SIGINT."""
    test = "tests/client/test_portal.py::test_ctrl_c_interrupts_a_portal_call_and_cancels_its_coroutine"
    ended = run_pytest("--timeout", 30, test, before="trap '' INT; ")
    assert ended.returncode == 0, ended.stdout


QUARANTINE = """
import pytest
from tests import quarantine

TABLE = {
    "test_it.py::test_known[a b]": "its cause is under investigation",
    "test_it.py::test_unready": "fixture under investigation",
}

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    quarantine.excuse(report, TABLE)
    return report

def pytest_terminal_summary(terminalreporter):
    quarantine.summarize(terminalreporter)
"""

KNOWN = """
import pytest

@pytest.fixture
def ready():
    raise ValueError("not ready")

@pytest.mark.parametrize("text", ["a b"])
def test_known(text):
    assert text == "c d", "a known fault"

def test_unready(ready):
    pass

def test_steady():
    pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "xdist"])
@pytest.mark.parametrize("other_fails", [False, True], ids=["alone", "with another failure"])
def test_quarantined_failures_are_reported_and_do_not_fail_the_run(
    workers: tuple[str, ...], other_fails: bool, tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(QUARANTINE)
    (tmp_path / "test_it.py").write_text(
        KNOWN + ("\ndef test_other():\n    assert False\n" if other_fails else "")
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-p xdist.plugin",
            "PYTHONPATH": str(ROOT),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == int(other_fails), ended.stdout
    summary = ended.stdout.partition("2 quarantined tests failed")[2]
    assert "AssertionError: a known fault" in summary
    assert "test_it.py::test_known[a b]: quarantined: its cause is under investigation" in summary
    assert "test_it.py::test_unready: quarantined: fixture under investigation" in summary
    assert "test_steady" not in summary


@pytest.mark.parametrize(
    ("table", "message"),
    [({str(number): "why" for number in range(6)}, "at most 5"), ({"test_it": " "}, "no reason for test_it")],
)
def test_quarantine_rejects_too_many_or_unexplained_entries(table: dict[str, str], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        quarantine.check(table)


def test_every_quarantined_test_exists() -> None:
    quarantine.check(quarantine.QUARANTINED)
    for name in quarantine.QUARANTINED:
        path, _, function = name.partition("[")[0].partition("::")
        assert f"def {function.rpartition('::')[2]}(" in (ROOT / path).read_text()
