"""How much work something is: lines that were executed and calls that were made, on this thread. No clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

SMALL, LARGE = 60, 240
MOST = 1.15
"""How much more an event may cost in a run four times as large. A list that is walked for each shows: 1.3 and more."""


class Work:
    """Counts what is done inside a `with` block."""

    def __enter__(self) -> Work:
        self.count = 0
        sys.settrace(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += 1
        return self._note


def assert_flat(work: Callable[[int], int], *, small: int = SMALL, large: int = LARGE) -> None:
    """Do something of two sizes: `work` does it and returns how many events it had. Each must cost the same."""
    costs = []
    work(small)  # what a first time loads and fills is not what is counted
    for size in (small, large):
        with Work() as done:
            events = work(size)
        costs.append(done.count / events)
    assert costs[1] <= costs[0] * MOST, f"{costs[0]:.1f} lines an event at {small}, {costs[1]:.1f} at {large}"
