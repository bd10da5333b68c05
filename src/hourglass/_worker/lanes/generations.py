"""How many generations of children a run stands below its root, and whether that looks like a workflow that calls
itself without end: `def step(n): return step(n)` starts a child that starts a child, and every one of them waits.

No engine tells a run's depth, only its parent and its root. So each child that is begun here is remembered, and one
is a generation below its parent; where another process began the parent, it counts from anew. For the lanes of a
worker, on several threads; runs that are no children cost nothing, and only so many are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from hourglass._evaluator.events import RunStarted
from hourglass.errors import UsageError

DEEP = 50
"""So many generations are worth a warning: a tree that is walked by children is not as deep."""

_REMEMBERED = 10_000
_MOST_TYPES = 1000


class Generations:
    """The depth of runs that were begun here. With `most`, a run below so many generations is refused."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self._depths: OrderedDict[str, int] = OrderedDict()
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def begun(self, run_id: str, started: RunStarted) -> str:
        """A child begins: what is to be said of it, once for each type of workflow; mostly nothing.

        Raises `UsageError` if it is refused.
        """
        parent = started.parent_run_id
        with self._lock:
            depth = self._depths[run_id] = (
                self._depths.get(parent, 0 if parent == started.root_run_id else 1) + 1
            )
            if len(self._depths) > _REMEMBERED:
                self._depths.popitem(last=False)
            if self.most is not None and depth > self.most:
                raise UsageError(_said(started, depth))
            if depth < DEEP or started.workflow_type in self._told or len(self._told) >= _MOST_TYPES:
                return ""
            self._told.add(started.workflow_type)
        return _said(started, depth)


def _said(started: RunStarted, depth: int) -> str:
    return (
        f"it is a child of generation {depth} below workflow {started.root_workflow_id}: does workflow "
        f"{started.workflow_type} call itself without end? In a workflow, a call of a workflow starts a child and waits for "
        "it, so all above it are open, too. To begin anew with other arguments: workflow.continue_as_new(…); to call the "
        "function itself put what it does into one that is no workflow"
    )
