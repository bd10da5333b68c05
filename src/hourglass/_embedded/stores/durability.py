"""Who waits for which change: numbers are given on the control loop, commits are reported by the store thread.

Must not know: files, SQL, what the changes are. Invariants: numbers count from 1 without a gap; a waiter is woken
when its number is durable, or gets the error that ended everything, or the one for which this change alone was
refused; one call wakes all that one commit satisfies.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count

from hourglass.errors import StorageError

_REMEMBERED = 10_000
"""So many refusals are remembered: callers wait for theirs at once."""


class Durability:
    """How far everything is durable. `committed` and `end` may be called on any thread, the rest on one loop."""

    def __init__(self) -> None:
        self._given = 0
        self._committed = 0
        self._failure: StorageError | None = None
        self._refused: dict[int, StorageError] = {}
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap, by number
        self._order = count()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def given(self) -> int:
        """The last number that was given."""
        return self._given

    @property
    def failure(self) -> StorageError | None:
        """What ended it, if anything has."""
        return self._failure

    def next_number(self) -> int:
        """A number for a change."""
        self._given += 1
        return self._given

    def has(self, number: int) -> bool:
        """Whether this change, and all before it, are durable."""
        return number <= self._committed and number not in self._refused

    async def wait(self, number: int) -> None:
        """Wait until this change is durable; raises what ended everything, or why it was refused, if it never will be."""
        if number in self._refused:
            raise _copy(self._refused[number])
        if number <= self._committed:
            return
        self._loop = asyncio.get_running_loop()
        waiter = self._loop.create_future()
        heappush(self._waiters, (number, next(self._order), waiter))
        if number <= self._committed or self._failure is not None:
            self.settle()  # what was reported before the waiter was there wakes nobody again
        await waiter

    def committed(self, number: int) -> None:
        """All changes up to this one are durable."""
        self._committed = number
        self._notify()

    def refuse(self, number: int, error: StorageError) -> None:
        """This change will never be durable; all others may be. Said before the commit that passes it over."""
        self._refused[number] = error
        while len(self._refused) > _REMEMBERED:
            del self._refused[next(iter(self._refused))]

    def end(self, failure: StorageError) -> None:
        """What is not durable now never will be."""
        if self._failure is None:
            self._failure = failure
        self._notify()

    def disown(self, failure: StorageError) -> None:
        """In a forked child: end, and tell nobody. The loop and those who wait on it are the parent's."""
        self._loop = None
        self._waiters = []
        self.end(failure)

    def settle(self) -> None:
        """Wake those whose wait is over. On the loop."""
        committed, failure, waiters = self._committed, self._failure, self._waiters
        while waiters and (waiters[0][0] <= committed or failure is not None):
            number, _, waiter = heappop(waiters)
            if waiter.done():
                continue
            refusal = self._refused.get(number) if number <= committed else failure
            if refusal is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(_copy(refusal))

    def _notify(self) -> None:
        loop = self._loop
        if loop is None:
            return  # nobody ever waited
        try:
            loop.call_soon_threadsafe(self.settle)
        except RuntimeError:
            pass  # the loop is closed, and everyone on it is gone


def _copy(error: StorageError) -> StorageError:
    """An error that is raised in several places has a traceback for each."""
    return type(error)(str(error), status=error.status)
