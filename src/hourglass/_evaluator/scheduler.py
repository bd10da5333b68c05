"""The deterministic scheduler of one run: a queue of ready callbacks, futures, and conditions. This module
knows no events.

The order of execution is exactly that of asyncio under Temporal's Python SDK (I1), so that histories are
interchangeable in both directions. The unit is a *turn*: one entry of the ready queue. When a future is
settled, its callbacks are queued in the order in which they were added. Conditions are checked, in the order of
their registration, each time the queue is empty. The number of turns between an event and the code that waits
for the event must never change:

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
    """The ready queue of a run between activations, when no callback can become ready."""

    def append(self, item: tuple[Callback, Any]) -> None:
        raise ReadOnlyError("a query must be read-only and cannot wake waiting fibers")


_CLOSED = _Closed()  # an empty deque takes 760 bytes, so idle runs share this one


class Scheduler:
    """The ready queue and the conditions of a run. Ready callbacks run first in, first out."""

    __slots__ = ("conditions", "ready")

    def __init__(self) -> None:
        self.ready: deque[tuple[Callback, Any]] = _CLOSED
        self.conditions: list[tuple[Callable[[], object], Future]] = []

    def open(self) -> None:
        """Accept callbacks for the turns of an activation."""
        self.ready = deque()

    def close(self) -> None:
        """Reject further callbacks at the end of an activation."""
        self.ready = _CLOSED

    def soon(self, callback: Callback) -> None:
        """Schedule a callback for the next free turn."""
        self.ready.append((callback, None))

    def drain(self, check: Callable[[], None] | None) -> None:
        """Take turns until the ready queue is empty. Call `check` to check the conditions each time the queue
        is empty.
        """
        ready = self.ready
        while ready:
            while ready:
                callback, argument = ready.popleft()
                callback(argument)
            if check is not None and self.conditions:
                check()

    def check_conditions(self) -> None:
        """Settle the conditions that are true now. Remove conditions whose fiber was cancelled or has stopped
        waiting.
        """
        has_settled = False
        for holds, future in self.conditions:
            if future.state != PENDING:
                has_settled = True
            elif holds():
                future.resolve(None)
                has_settled = True
        if has_settled:  # rarely true, and the list may contain thousands of conditions
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
        """Settle as cancelled. Return False if the future is already settled. `source` is the scope that
        requested the cancellation.
        """
        if self.state != PENDING:
            return False
        self._settle(CANCELLED, None)
        return True

    def release(self, _: Any = None) -> None:
        """Settle without a value, unless the future is already settled. Used as a callback of timers and other
        futures.
        """
        if self.state == PENDING:
            self._settle(RESOLVED, None)

    def _settle(self, state: int, value: Any) -> None:
        if self.state != PENDING:
            raise InternalError("the future is already settled")
        callbacks = self.callbacks
        if callbacks is not None:
            ready = self.scheduler.ready
            for callback in callbacks:
                ready.append((callback, self))
            self.callbacks = None
        # The state changes last. In a query, the append above raises, and the future must then be unchanged.
        self.state = state
        self.value = value

    def add_callback(self, callback: Callback) -> None:
        """Add a callback. It is called in a turn of its own after the future is settled, or in the next free
        turn if the future is already settled.
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
    """A future that combines several futures. It fails when the first of them fails, or resolves when all are
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
        # As in asyncio from Python 3.12 on, children that are already settled are counted immediately. Before
        # 3.12, each takes a turn.
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
        """Cancel every child. The children then settle this future."""
        if self.state != PENDING:
            return False
        reached = False
        for child in self.children:
            reached = child.cancel() or reached
        if reached:
            self.cancel_requested = True
        return reached
