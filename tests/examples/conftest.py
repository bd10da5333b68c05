"""Runs the examples as programs in an empty directory, and makes them importable for tests of their workflows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.append(str(EXAMPLES))

TARGETS = ("HOURGLASS_TARGET", "TEMPORAL_ADDRESS")

Program = Callable[..., str]


def unexpected_errors(errors: str) -> list[str]:
    """Return the lines on stderr, except those about failed attempts and runs, which some examples intend."""
    expected = re.compile(r"  .*|activity \S+ of workflow \S+ \(.*\) failed .*|\S+ \S+ failed after .*")
    return [line for line in errors.splitlines() if not expected.fullmatch(line)]


@pytest.fixture
def run_program(tmp_path: Path) -> Program:
    """Run a Python program in an empty directory and return its output. Its stderr must be empty."""

    def run(*arguments: str, **environment: str) -> str:
        inherited = {key: value for key, value in os.environ.items() if key not in TARGETS}
        process = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            env=inherited | environment,
            cwd=tmp_path,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        assert (process.returncode, unexpected_errors(process.stderr)) == (0, []), (
            process.stdout + process.stderr
        )
        return process.stdout

    return run
