"""The published items of a workflow. For each name, a run has a buffer with the latest items. A query reads the buffer.

Must not know: clients. Publishing issues no command and writes no event, because a replay recreates the items like the run's
variables. Invariants: offsets count from 0 and never decrease; only the newest `limit` items are kept.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from hourglass import workflow
from hourglass._evaluator.fibers import require_fiber

Batch = tuple[int, int, list[Any]]
"""The offset of the first item, the number of items published so far, and the items."""

StampedBatch = tuple[int, int, list[Any], list[int]]
"""A batch, and for each item the length of the history when it was published."""

MOST_AT_ONCE = 100
MOST_BYTES = 512 * 1024
"""The maximum size of a query result. An engine would accept two megabytes."""


class Buffer:
    """The newest items published under a name."""

    def __init__(self, limit: int) -> None:
        self._items: deque[tuple[Any, int, int]] = deque(maxlen=limit)
        self._published = 0

    def add(self, value: Any, size: int, stamp: int = 0) -> None:
        """Add an item of this size in bytes, stamped with the length of the history."""
        self._items.append((value, size, stamp))
        self._published += 1

    def read(self, begin: int, most: int) -> Batch:
        """Return items from an offset on, as many as fit into a query result. A negative offset counts from the end."""
        return self.read_stamped(begin, most)[:3]

    def read_stamped(self, begin: int, most: int) -> StampedBatch:
        """Return items as `read` does, with their stamps."""
        oldest = self._published - len(self._items)
        begin = self._published + begin if begin < 0 else begin
        first = min(max(begin, oldest), self._published)
        skipped = first - oldest
        items: list[Any] = []
        stamps: list[int] = []
        room = MOST_BYTES
        for value, size, stamp in islice(self._items, skipped, skipped + max(0, min(most, MOST_AT_ONCE))):
            room -= size
            if room < 0 and items:
                break
            items.append(value)
            stamps.append(stamp)
        return first, self._published, items, stamps


def query_name(name: str) -> str:
    """Return the name of the query that reads a name's items. Programs in other languages use it, too."""
    return f"progress.{name}"


def buffer_of_run(name: str, limit: int) -> Buffer:
    """Return the buffer for a name in the current run. Create the buffer on first use."""
    fiber = require_fiber("publishing progress")
    run = fiber.run
    if run.latched:
        run.raise_unavailable(fiber, "publishing progress")
    handlers = run.handlers.known.get(("query", query_name(name)))
    if handlers is not None:
        existing: Buffer = vars(handlers[0].fn)["buffer"]
        return existing
    made = Buffer(limit)

    def read(begin: int = 0, most: int = MOST_AT_ONCE, stamped: bool = False) -> Batch | StampedBatch:
        """Return published items: the offset of the first one, the number of all, and the items."""
        return made.read_stamped(begin, most) if stamped else made.read(begin, most)

    vars(read)["buffer"] = made
    workflow.query(name=query_name(name))(read)
    return made
