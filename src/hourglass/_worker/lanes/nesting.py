"""The depth of a run in its family of parents and children, to detect a workflow that starts itself endlessly.

With `def step(n): return step(n)`, each run starts a child and waits for it. Engines report only the parent and the
root of a run. Each child that begins in this process is therefore remembered with its parent's depth plus one. The
depth of a parent that began in another process counts as 0 for a root, else as 1. Thread-safe: all lanes of a worker
share one object. The number of remembered runs is limited.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from hourglass._evaluator.events import RunStarted
from hourglass.errors import UsageError

DEEP = 50
"""The depth at which a warning is logged. Intended recursion over a tree of children is less deep."""

_REMEMBERED = 10_000
_MOST_TYPES = 1000


class NestingDepths:
    """The depths of runs that began here. Runs deeper than `most` are rejected."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._depths: OrderedDict[str, int] = OrderedDict()
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def record(self, run_id: str, started: RunStarted) -> str:
        """Record a child run. Return a warning if the run is nested deeply, once per workflow type; otherwise an empty
        str.

        Raises `UsageError` if the run is deeper than `most`.
        """
        parent = started.parent_run_id
        with self._lock:
            depth = self._depths[run_id] = (
                self._depths.get(parent, 0 if parent == started.root_run_id else 1) + 1
            )
            if len(self._depths) > _REMEMBERED:
                self._depths.popitem(last=False)
            if self.most is not None and depth > self.most:
                raise UsageError(_warning(started, depth))
            if depth < DEEP or started.workflow_type in self._warned or len(self._warned) >= _MOST_TYPES:
                return ""
            self._warned.add(started.workflow_type)
        return _warning(started, depth)


def _warning(started: RunStarted, depth: int) -> str:
    return (
        f"this child workflow is nested {depth} levels below workflow {started.root_workflow_id}: does workflow "
        f"{started.workflow_type} call itself without end? A workflow that calls a workflow starts a child and waits for it, "
        "so all its ancestors are open, too. To start again with other arguments, use workflow.continue_as_new(…). To call "
        "the code directly, move it into a function that is not a workflow"
    )
