"""Waiting for conditions in other threads, processes and servers that signal no event."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""In seconds: enough for a busy machine, and for a server that deletes a closed run after half a minute."""


def until(look: Callable[[], T], what: str = "the condition never held", limit: float = PATIENCE) -> T:
    """Call `look` repeatedly until its result is truthy, and return the result; fail with the message `what` after the limit."""
    deadline = monotonic() + limit
    while not (found := look()):
        assert monotonic() < deadline, what
        sleep(0.01)  # the only place where tests poll
    return found
