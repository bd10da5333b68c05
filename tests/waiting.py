"""How tests wait for what no event tells: what happens in other threads, processes and servers."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 120.0
"""Seconds. A machine that is busy with other tests takes its time, and a server needs half a minute to delete what has just
closed; a test that passes hardly waits.
"""


def until(look: Callable[[], T], what: str = "it never came true", limit: float = PATIENCE) -> T:
    """Look again and again until what is found is true, and give it; `what` says what is wrong if it never is."""
    deadline = monotonic() + limit
    while not (found := look()):
        assert monotonic() < deadline, what
        sleep(0.01)  # the one place in tests that waits by asking again
    return found
