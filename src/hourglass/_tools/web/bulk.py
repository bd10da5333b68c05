"""One thing done to many runs, in the background, with its progress. Readers look at it by its number, or hear of it as it goes
on.

Must not know: HTTP. Invariants: an operation touches each run once; one that fails stops no other; what failed is kept, by run,
up to a limit; of the operations that have ended the last hundred are remembered.
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
"""What is done to one run, by its workflow id and run id."""


TYPED_ABOVE = 20
"""Above so many runs a reader types their number before something is done to them."""


@dataclass(frozen=True)
class ConfirmedScope:
    """What a reader is asked about before it is done: the chosen runs, or all that a filter finds."""

    count: int
    runs: Sequence[tuple[str, str]] = ()
    query: str = ""
    """What finds all of them."""
    shown: str = ""
    """The filter as the reader gave it."""
    is_all: bool = False

    @property
    def must_be_typed(self) -> bool:
        """Whether the number must be typed."""
        return self.count > TYPED_ABOVE

    def rejection(self, expected: str, typed: str) -> str:
        """Return why an answer does not confirm it; empty if it does. `expected` is the number that the reader was shown."""
        if not expected.isdecimal() or len(expected) > 12 or self.count > int(expected):
            return f"there are more now: {self.count}"
        if int(expected) > TYPED_ABOVE and typed.replace(",", "").strip() != expected:
            return f"type the number, {expected}, to go on: {typed.strip()[:40] or 'nothing'} was typed, and nothing was done"
        return ""


@dataclass
class BulkOperation:
    """How far one has come."""

    number: int
    title: str
    total: int
    done: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    failed: int = 0
    stopped: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing more will be done."""
        return self.stopped or self.done >= self.total


class BulkOperations:
    """All operations of a site."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENT, thread_name_prefix="hourglass-ui-bulk")
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._operations: OrderedDict[int, BulkOperation] = OrderedDict()

    def start(self, title: str, runs: Sequence[tuple[str, str]], act: Act) -> BulkOperation:
        """Begin to do it to each of these runs."""
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
        """One by its number."""
        return self._operations.get(number)

    def stop(self, number: int) -> None:
        """Do no more of it; what has begun goes on."""
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
        except Exception as raised:  # one that fails must not stop the others
            error = f"{type(raised).__name__}: {raised}"
        with self._lock:
            operation.done += 1
            if error:
                operation.failed += 1
                if len(operation.failures) < _MAX_FAILURES:
                    operation.failures.append((workflow_id, run_id, error))

    def close(self) -> None:
        """Stop all of them."""
        for operation in self._operations.values():
            operation.stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)
