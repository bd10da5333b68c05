"""One action on many runs, in the background, with its progress. The web UI finds an operation by its number.

Must not know: HTTP. Invariants: an operation acts on each run once. A failure for one run does not stop the operation.
Failures are stored by run, up to a limit. The last hundred finished operations are kept.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from hourglass.errors import HourglassError

_MAX_CONCURRENT = 8
_MAX_FAILURES = 200
_MAX_ENDED = 100

Act = Callable[[str, str], object]
"""The action to perform on one run, called with the workflow id and the run id."""


TYPED_ABOVE = 20
"""The number of runs above which the reader must type the number to confirm."""


@dataclass(frozen=True)
class ConfirmedScope:
    """The runs for which a reader must confirm an action: the selected runs, or all runs that a filter finds."""

    count: int
    runs: Sequence[tuple[str, str]] = ()
    query: str = ""
    """The filter that finds the runs."""
    shown: str = ""
    """The filter as entered by the reader."""
    is_all: bool = False

    @property
    def must_be_typed(self) -> bool:
        """Whether the number of runs must be typed."""
        return self.count > TYPED_ABOVE

    def rejection(self, expected: str, typed: str) -> str:
        """Return why an answer is not a confirmation, or "". `expected` is the number shown to the reader."""
        if not expected.isdecimal() or len(expected) > 12 or self.count > int(expected):
            return f"more workflows match now: {self.count}"
        if int(expected) > TYPED_ABOVE and typed.replace(",", "").strip() != expected:
            return (
                f"type the number {expected} to confirm: {typed.strip()[:40] or 'nothing'} was typed, so no action was "
                "performed"
            )
        return ""


@dataclass
class BulkOperation:
    """The progress of a bulk operation."""

    number: int
    title: str
    total: int
    done: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    failed: int = 0
    stopped: bool = False

    @property
    def ended(self) -> bool:
        """Whether no more runs will be processed."""
        return self.stopped or self.done >= self.total


class BulkOperations:
    """All bulk operations of a site."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="hourglass-ui-bulk")
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._operations: OrderedDict[int, BulkOperation] = OrderedDict()

    def start(self, title: str, runs: Sequence[tuple[str, str]], act: Act) -> BulkOperation:
        """Start an operation that applies an action to each of these runs."""
        with self._lock:
            operation = BulkOperation(next(self._numbers), title, len(runs))
            self._operations[operation.number] = operation
            for number in [
                ended_number
                for ended_number, past_operation in self._operations.items()
                if past_operation.ended
            ][:-_MAX_ENDED]:
                del self._operations[number]
        for workflow_id, run_id in runs:
            self._threads.submit(self._act, operation, act, workflow_id, run_id)
        return operation

    def find(self, number: int) -> BulkOperation | None:
        """Return an operation by its number, or None."""
        return self._operations.get(number)

    def stop(self, number: int) -> None:
        """Skip the remaining runs of an operation. Actions that have already started continue."""
        operation = self.find(number)
        if operation is not None and not operation.ended:
            operation.stopped = True

    def _act(self, operation: BulkOperation, act: Act, workflow_id: str, run_id: str) -> None:
        if operation.stopped:
            return
        error = ""
        try:
            act(workflow_id, run_id)
        except HourglassError as raised:
            error = str(raised)
        except Exception as raised:  # one failure must not stop the others
            error = f"{type(raised).__name__}: {raised}"
        with self._lock:
            operation.done += 1
            if error:
                operation.failed += 1
                if len(operation.failures) < _MAX_FAILURES:
                    operation.failures.append((workflow_id, run_id, error))

    def close(self) -> None:
        """Stop all operations."""
        for operation in self._operations.values():
            operation.stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)
