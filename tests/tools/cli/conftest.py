"""Fixtures that restore process settings which a command changes: logging and HOURGLASS_TRACEBACK."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


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
