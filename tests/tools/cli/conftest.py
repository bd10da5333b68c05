"""Fixtures that run commands in this process and restore settings which a command changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from command_line import main


@pytest.fixture(autouse=True)
def _logging(logging_as_it_was: None) -> None:
    """Restore the logging configuration."""


@pytest.fixture(autouse=True)
def _traceback() -> Iterator[None]:
    """Restore HOURGLASS_TRACEBACK, which `--traceback` sets for the process."""
    before = os.environ.get("HOURGLASS_TRACEBACK")
    yield
    if before is None:
        os.environ.pop("HOURGLASS_TRACEBACK", None)
    else:
        os.environ["HOURGLASS_TRACEBACK"] = before


@pytest.fixture
def run_main(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command on a target and returns exit code, stdout and stderr."""

    def run(target: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*arguments, "--target", target])
        return code, *capsys.readouterr()

    return run
