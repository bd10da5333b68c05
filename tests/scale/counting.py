"""Cost of code as a number: lines executed and calls made on this thread, without a clock."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

SMALL, LARGE = 60, 240
MOST = 1.15
"""The largest allowed ratio of costs per event, in a run four times as large. A scan of a list per event gives 1.3 or more."""


class Work:
    """Counts executed lines in a `with` block."""

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
    """Check that an event costs the same for both sizes. `work` handles one size and returns the number of its events."""
    costs = []
    work(small)  # the first execution also fills caches
    for size in (small, large):
        with Work() as done:
            events = work(size)
        costs.append(done.count / events)
    assert costs[1] <= costs[0] * MOST, f"{costs[0]:.1f} lines an event at {small}, {costs[1]:.1f} at {large}"
