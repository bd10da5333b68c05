"""Two helpers for the holder and its parts: a shared timer for overdue calls, and a condition variable for one loop.

`CallDeadlines` calls back for each call that has not ended within a fixed limit. All calls have the same limit, so the
oldest is always the next to be overdue, and one timer serves thousands of calls. `Condition` wakes all waiters
together.

Must not know: the purpose of the calls. Everything belongs to one event loop. Invariants: each watched call is reported
at most once, and never after it was forgotten. A notification without a waiter is lost. A caller must therefore check
its condition and then wait, without an await in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("hourglass.bridge")

_NO_LIMIT: AbstractAsyncContextManager[object] = nullcontext()


def within(seconds: float | None) -> AbstractAsyncContextManager[object]:
    """Return `asyncio.timeout(seconds)`, or a context manager that does nothing if `seconds` is None."""
    return _NO_LIMIT if seconds is None else asyncio.timeout(seconds)


class CallDeadlines:
    """Invokes a callback for each call that is not forgotten within the limit, in the order in which the calls were
    watched.

    The limit is the same for all calls, so the dict's insertion order is the order of deadlines, and one timer is
    enough.
    """

    __slots__ = ("_loop", "_timer", "_watched", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._watched: dict[Any, tuple[float, Callable[[Any], object]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, what: T, overdue: Callable[[T], object]) -> None:
        """Invoke `overdue` with the call `what` unless the call is forgotten within the limit. `what` must be hashable,
        and can be watched only once at a time.
        """
        loop = self._loop = self._loop or asyncio.get_running_loop()
        due = loop.time() + self.limit
        self._watched[what] = (due, overdue)
        if self._timer is None:
            self._timer = loop.call_at(due, self._check)

    def forget(self, what: object) -> bool:
        """Stop watching a call that has ended. Return whether the call was still watched."""
        return self._watched.pop(what, None) is not None

    def _check(self) -> None:
        self._timer = None
        assert self._loop is not None
        now = self._loop.time()
        while self._watched:
            what, (due, overdue) = next(iter(self._watched.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._check)
                return
            del self._watched[what]
            try:
                overdue(what)
            except Exception:
                # An exception in one callback must not keep the others from being called.
                logger.exception("the callback for an overdue call failed")


class Condition:
    """A condition variable for one event loop. `notify_all` wakes all waiters together.

    A notification without a waiter is lost. A caller must therefore check its condition and then wait, without an await
    in between.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[bool]] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    def notify_all(self) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next notification. Return False if `timeout` seconds pass without one."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.add(waiter)
        alarm = None if timeout is None else loop.call_later(max(timeout, 0.0), _give_up, waiter)
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)
            if alarm is not None:
                alarm.cancel()


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
