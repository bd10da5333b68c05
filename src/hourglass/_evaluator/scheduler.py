"""The deterministic scheduler of one run: a queue of ready callbacks, futures, and conditions. Knows no
events.

The order is Temporal's (I1): it is exactly that of asyncio under Temporal's Python SDK, so that histories are
interchangeable in both directions. The unit is a *turn*: one entry of the ready queue. When a future is
settled, its callbacks are queued in the order in which they were added; conditions are checked, in the order
of their registration, each time the queue is empty. The number of turns between an event and the code that
waits for it is frozen:

    activity and child result 3 · child start, external signal and timer 2 · condition, task and task start 1 ·
    gather one per level · cancel to its command 1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from hourglass.errors import InternalError, ReadOnlyError

PENDING, RESOLVED, FAILED, CANCELLED = range(4)

Callback: TypeAlias = Callable[[Any], object]


class _Closed(deque[tuple[Callback, Any]]):
    """The ready queue of a run without an activation: nothing can become ready."""

    def append(self, item: tuple[Callback, Any]) -> None:
        raise ReadOnlyError("a query must not change anything: it cannot wake waiting fibers")


_CLOSED = _Closed()  # an empty deque takes 760 bytes, so idle runs share this one


class Scheduler:
    """Runs ready callbacks, first in first out, until none is left."""

    __slots__ = ("conditions", "ready")

    def __init__(self) -> None:
        self.ready: deque[tuple[Callback, Any]] = _CLOSED
        self.conditions: list[tuple[Callable[[], object], Future]] = []

    def open(self) -> None:
        """Begin an activation."""
        self.ready = deque()

    def close(self) -> None:
        """End an activation."""
        self.ready = _CLOSED

    def soon(self, callback: Callback) -> None:
        """Schedule a callback for the next free turn."""
        self.ready.append((callback, None))

    def drain(self, check: Callable[[], None] | None) -> None:
        """Take turns until none is left; `check` checks the conditions each time the queue is empty."""
        ready = self.ready
        while ready:
            while ready:
                callback, argument = ready.popleft()
                callback(argument)
            if check is not None and self.conditions:
                check()

    def check_conditions(self) -> None:
        """Settle the conditions that hold now; remove those whose fiber was cancelled or has stopped waiting."""
        has_settled = False
        for holds, future in self.conditions:
            if future.state != PENDING:
                has_settled = True
            elif holds():
                future.resolve(None)
                has_settled = True
        if has_settled:  # rare: thousands of conditions may wait, and are checked after every turn
            self.conditions = [entry for entry in self.conditions if entry[1].state == PENDING]


class Future:
    """A placeholder for a value that is settled once: resolved, failed or cancelled."""

    __slots__ = ("callbacks", "scheduler", "state", "value")

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state = PENDING
        self.value: Any = None
        self.callbacks: list[Callback] | None = None

    def resolve(self, value: Any = None) -> None:
        """Settle with a value."""
        self._settle(RESOLVED, value)

    def fail(self, error: BaseException) -> None:
        """Settle with an error."""
        self._settle(FAILED, error)

    def cancel(self, source: object = None) -> bool:
        """Settle as cancelled; return False if it was settled already. `source` is the scope that requested
        it.
        """
        if self.state != PENDING:
            return False
        self._settle(CANCELLED, None)
        return True

    def release(self, _: Any = None) -> None:
        """Settle without a value, unless settled already: a callback for timers and other futures."""
        if self.state == PENDING:
            self._settle(RESOLVED, None)

    def _settle(self, state: int, value: Any) -> None:
        if self.state != PENDING:
            raise InternalError("a future was settled twice")
        callbacks = self.callbacks
        if callbacks is not None:
            ready = self.scheduler.ready
            for callback in callbacks:
                ready.append((callback, self))
            self.callbacks = None
        # Last: in a query, where nothing can become ready, the append raises before anything has changed.
        self.state = state
        self.value = value

    def add_callback(self, callback: Callback) -> None:
        """Add a callback, called in its own turn when the future is settled, or in the next turn if it is
        settled already.
        """
        if self.state != PENDING:
            self.scheduler.ready.append((callback, self))
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def remove_callback(self, callback: Callback) -> None:
        """Remove a callback that has not been queued yet."""
        if self.callbacks is not None and callback in self.callbacks:
            self.callbacks.remove(callback)


class Gathered(Future):
    """A future for all of several futures: it fails with the first that fails, or resolves when all are
    resolved.
    """

    __slots__ = ("cancel_requested", "children", "failed_child", "missing", "return_exceptions")

    def __init__(
        self,
        scheduler: Scheduler,
        children: list[Future],
        *,
        return_exceptions: bool,
        at_once: bool = False,
    ) -> None:
        super().__init__(scheduler)
        self.children = children
        self.return_exceptions = return_exceptions
        self.cancel_requested = False
        self.failed_child: Future | None = None
        self.missing = len(children)
        # As in asyncio from Python 3.12 on, children that are settled already count at once; before, in a
        # turn of their own.
        early = [child for child in children if child.state != PENDING] if at_once else []
        for child in children:
            if not at_once or child.state == PENDING:
                child.add_callback(self._child_settled)
        for child in early:
            self._child_settled(child)

    def _child_settled(self, child: Future) -> None:
        self.missing -= 1
        if self.state != PENDING:
            return
        if child.state != RESOLVED and not self.return_exceptions:
            self.failed_child = child
            if child.state == CANCELLED:
                super().cancel()
            else:
                self.fail(child.value)
        elif self.missing == 0:
            if self.cancel_requested:
                super().cancel()
            else:
                self.resolve(None)

    def cancel(self, source: object = None) -> bool:
        """Cancel every child; the children settle this future."""
        if self.state != PENDING:
            return False
        reached = False
        for child in self.children:
            reached = child.cancel() or reached
        if reached:
            self.cancel_requested = True
        return reached
