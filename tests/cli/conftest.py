"""After each test: logging is as it was. A command configures it for its whole process, and here that is everybody's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    loggers = (logging.getLogger(), logging.getLogger("hourglass"))
    before = [(each, each.level, each.propagate, list(each.handlers)) for each in loggers]
    yield
    for each, level, propagate, handlers in before:
        each.setLevel(level)
        each.propagate = propagate
        for handler in [*each.handlers]:
            if handler not in handlers:
                each.removeHandler(handler)
