"""The durability of changes, as seen by the control loop, and the calls that wait for it.

Must not know: files, the queue of the store thread, the content of changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from hourglass.errors import StorageError

logger = logging.getLogger("hourglass")

_REMEMBERED = 10_000
"""The number of rejections that are remembered. Older ones are not needed, because a call waits for its change soon after
appending it.
"""


class Durability:
    """A record of the changes that are durable. The control loop assigns the change numbers, the store thread reports
    commits.

    `committed`, `reject` and `end` may be called on any thread, the other methods on a single event loop only.
    Invariants: numbers count from 1 without a gap; a waiter ends when its number is durable, or with the error that
    ended the store, or with the error for which its change was rejected; one callback on the loop serves all waiters of
    a commit.
    """

    def __init__(self) -> None:
        self.newest = 0
        """The number of the newest change."""
        self._committed = 0
        self.failure: StorageError | None = None
        """The error that stopped the store; None while it works."""
        self._rejected: dict[int, StorageError] = {}
        self._waiters: list[
            tuple[int, int, Callable[[StorageError | None], object]]
        ] = []  # a heap, by number
        self._order = count()
        self._loop: asyncio.AbstractEventLoop | None = None

    def has(self, number: int) -> bool:
        """Whether this change and all earlier ones, except rejected ones, are durable."""
        return number <= self._committed and number not in self._rejected

    async def wait(self, number: int) -> None:
        """Wait until this change is durable. Raise the error that stopped the store, or for which the change was
        rejected.
        """
        if number in self._rejected:
            raise _copy(self._rejected[number])
        if number <= self._committed:
            return
        waiter = asyncio.get_running_loop().create_future()
        self.call(number, partial(_end, waiter))
        await waiter

    def call(self, number: int, callback: Callable[[StorageError | None], object]) -> None:
        """Call `callback` with None once this change is durable, or with the error that `wait` would raise.

        The callback runs on the event loop, after this method has returned.
        """
        self._loop = asyncio.get_running_loop()
        heappush(self._waiters, (number, next(self._order), callback))
        # After the push: the store thread reports a commit once, and may have done so before `callback` was in the heap.
        if number <= self._committed or self.failure is not None:
            self._loop.call_soon(self.settle)

    def committed(self, number: int) -> None:
        """Record that all changes up to this one are durable."""
        self._committed = number
        self._notify()

    def reject(self, number: int, error: StorageError) -> None:
        """Record that this change was rejected and can never become durable. Must be called before the commit that omits
        the change is reported.
        """
        self._rejected[number] = error
        while len(self._rejected) > _REMEMBERED:
            del self._rejected[next(iter(self._rejected))]

    def end(self, failure: StorageError) -> None:
        """Record that the store has stopped: changes that are not durable yet never will be."""
        if self.failure is None:
            self.failure = failure
        self._notify()

    def disown(self, failure: StorageError) -> None:
        """End in a forked child, without waking any waiter. The loop and its tasks belong to the parent process."""
        self._loop = None
        self._waiters = []
        self.end(failure)

    def settle(self) -> None:
        """Call the callbacks of changes that are durable or have failed. Called on the control loop."""
        committed, failure, waiters = self._committed, self.failure, self._waiters
        while waiters and (waiters[0][0] <= committed or failure is not None):
            number, _, callback = heappop(waiters)
            rejection = self._rejected.get(number) if number <= committed else failure
            try:
                callback(None if rejection is None else _copy(rejection))
            except Exception:  # one failing callback must not prevent the others
                logger.exception("a callback for a durable change failed")

    def _notify(self) -> None:
        loop = self._loop
        if loop is None:
            return  # no call has waited yet
        try:
            loop.call_soon_threadsafe(self.settle)
        except RuntimeError:
            pass  # the loop is closed, so no task waits any more


def _end(waiter: asyncio.Future[None], error: StorageError | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)


def _copy(error: StorageError) -> StorageError:
    """Return a copy to raise: an exception object that is raised several times accumulates tracebacks."""
    return type(error)(str(error), status=error.status)
