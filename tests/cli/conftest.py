"""After each test: logging is as it was. A command configures it for its whole process, and here that is everybody's."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _logging(logging_as_it_was: None) -> None:
    """Every command may."""
