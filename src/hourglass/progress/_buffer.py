"""What a run has published, as the run keeps it: the last items of each name, in memory, and the query that reads them.

Must not know: clients. Publishing issues no command and writes no event: the items follow from executing the run, as
its variables do. Invariants: offsets count from 0 and never go back; at most `limit` items are kept, the newest.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from hourglass import workflow
from hourglass._engine.fibers import require_fiber

Batch = tuple[int, int, list[Any]]
"""The offset of the first item, how many have been published so far, and the items."""

MOST_AT_ONCE = 100
MOST_BYTES = 512 * 1024
"""What an answer may hold: an engine takes two megabytes at most."""


class Buffer:
    """The newest items of one name."""

    def __init__(self, limit: int) -> None:
        self._items: deque[tuple[Any, int]] = deque(maxlen=limit)
        self._published = 0

    def add(self, value: Any, size: int) -> None:
        """Keep an item of so many bytes."""
        self._items.append((value, size))
        self._published += 1

    def read(self, begin: int, most: int) -> Batch:
        """Items from an offset on, as many as fit into an answer; a negative one counts from the end."""
        oldest = self._published - len(self._items)
        begin = self._published + begin if begin < 0 else begin
        first = min(max(begin, oldest), self._published)
        skipped = first - oldest
        found: list[Any] = []
        room = MOST_BYTES
        for value, size in islice(self._items, skipped, skipped + max(0, min(most, MOST_AT_ONCE))):
            room -= size
            if room < 0 and found:
                break
            found.append(value)
        return first, self._published, found


def query_name(name: str) -> str:
    """The query by which the items of a name are read; from other programs and languages, too."""
    return f"progress.{name}"


def buffer_of_run(name: str, limit: int) -> Buffer:
    """The buffer of a name in the current run; set up when it is first asked for."""
    fiber = require_fiber("publishing progress")
    run = fiber.run
    if run.latched:
        run.refuse(fiber, "publishing progress")
    known = run.handlers.known.get(("query", query_name(name)))
    if known is not None:
        found: Buffer = vars(known[0].fn)["buffer"]
        return found
    made = Buffer(limit)

    def read(begin: int = 0, most: int = MOST_AT_ONCE) -> Batch:
        """What the workflow has published: the first item's offset, how many there were in all, and the items."""
        return made.read(begin, most)

    vars(read)["buffer"] = made
    workflow.query(name=query_name(name))(read)
    return made
