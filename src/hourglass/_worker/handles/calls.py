"""What the holder's parts share: calls that begin at once, one timer for all calls that take too long, and a condition
on one loop.

`begin` runs a coroutine right away, in the turn of its caller: a call on an engine in this process mostly ends
there and then, and costs no task. `CallDeadlines` tells of each call that has not ended within a fixed limit: the limit
is the same for all, so the oldest is always the next to be overdue, and one timer serves thousands. `Condition` wakes
all waiters together.

Must not know: what the calls are for. Everything belongs to one loop. Invariants: a coroutine that was begun is
never dropped; each thing watched is told of once at most, and not after it was forgotten; a notification that meets no
waiter is not kept, so a waiter looks first and waits then, without an await in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, nullcontext
from types import coroutine
from typing import Any, TypeVar

# --- calls --------------------------------------------------------------------------------------------------


T = TypeVar("T")

logger = logging.getLogger("hourglass.bridge")


def begin(call: Coroutine[Any, Any, T]) -> asyncio.Task[T] | None:
    """Run a coroutine until it first waits; gives the task in which it goes on, or None if it has ended.

    What it raises before it waits is raised here. That first stretch has no task of its own: `asyncio.timeout`, which asks
    for one, works after the first wait only.
    """
    try:
        awaited = call.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_go_on(call, awaited))


async def _go_on(call: Coroutine[Any, Any, T], awaited: Any) -> T:
    """The rest of a coroutine, as one: from Python 3.12 on tasks refuse generators."""
    return await _pass_on(call, awaited)


@coroutine
def _pass_on(call: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Pass on what a coroutine waits for, and what comes of that."""
    try:
        while True:
            try:
                answer = yield awaited
            except GeneratorExit:
                call.close()
                raise
            except BaseException as error:
                awaited = call.throw(error)
            else:
                awaited = call.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


_NO_LIMIT: AbstractAsyncContextManager[object] = nullcontext()


def within(seconds: float | None) -> AbstractAsyncContextManager[object]:
    """`asyncio.timeout`, which costs as much as a small call does, for those that have a limit."""
    return _NO_LIMIT if seconds is None else asyncio.timeout(seconds)


class CallDeadlines:
    """Calls back for each call that was not forgotten within the limit, in the order in which they were watched.

    The limit is the same for all, so the dict's insertion order is the order of deadlines, and one timer is enough.
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
        """Call `overdue` with this unless it is forgotten in time. It is hashable, and watched once at a time."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        due = loop.time() + self.limit
        self._watched[what] = (due, overdue)
        if self._timer is None:
            self._timer = loop.call_at(due, self._look)

    def forget(self, what: object) -> bool:
        """It has ended; whether it was still watched."""
        return self._watched.pop(what, None) is not None

    def _look(self) -> None:
        self._timer = None
        assert self._loop is not None
        now = self._loop.time()
        while self._watched:
            what, (due, overdue) = next(iter(self._watched.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._look)
                return
            del self._watched[what]
            try:
                overdue(what)
            except Exception:
                # One callback that fails must not keep the others from being called.
                logger.exception("what takes too long could not be told")


# --- a condition --------------------------------------------------------------------------------------------


class Condition:
    """A condition on one loop: `notify_all` wakes all waiters together, and a waiter that is cancelled consumes nothing.

    A notification that meets no waiter is not kept.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[bool]] = set()

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters)

    def notify_all(self) -> None:
        """Wake all waiters."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(True)

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next notification; False when `timeout` seconds passed without one."""
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
