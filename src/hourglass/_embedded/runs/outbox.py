"""The outbox holds back every effect outside the engine until the change that the effect depends on is durable.

Effects are attempts sent to workers, cancellations of attempts, answers and rejections for clients, and the
confirmation of a worker's result. The engine is ahead of its store. If effects did not wait, a crash could lose a
change whose effect somebody has seen.

Must not know: the content of effects. Invariants:

- An effect is released only when its change, and every change before it, is durable.
- An effect is released at most once.
- An effect is notified if its change can never become durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from hourglass._embedded.store.store import Store, Unwritable
from hourglass.errors import StorageError

T = TypeVar("T")


class Outbox:
    """The outbox of an engine. `on_failure` is called when the store can no longer write."""

    def __init__(self, store: Store, on_failure: Callable[[StorageError], None]) -> None:
        self._store = store
        self.is_durable: Callable[[int], bool] = store.is_durable
        """Whether effects of the change with this number may leave the engine."""
        self._on_failure = on_failure

    def stage(self, number: int, effect: Callable[[StorageError | None], object]) -> None:
        """Call `effect(None)` once the change with this number is durable. The call is immediate if the change
        already is durable; otherwise it happens in a later iteration of the event loop.

        If the change can never become durable, call `effect` with the error instead.
        """
        if self.is_durable(number):
            effect(None)
        else:
            self._store.when_durable(number, partial(self._release, effect))

    def _release(self, effect: Callable[[StorageError | None], object], error: StorageError | None) -> None:
        if error is not None and not isinstance(error, Unwritable):
            self._on_failure(error)
        effect(error)

    async def wait(self, number: int) -> None:
        """Wait until the change with this number is durable. Raise `StorageError` if the change can never become
        durable.
        """
        if self.is_durable(number):
            return
        try:
            await self._store.durable(number)
        except Unwritable:
            raise  # only this change is at fault: the store still works
        except StorageError as error:
            self._on_failure(error)
            raise

    async def wait_briefly(self, number: int, patience: float) -> bool:
        """Wait for at most `patience` seconds until the change with this number is durable. Do not wait if the store
        currently cannot write. Return whether the change is durable.
        """
        if self.is_durable(number):
            return True
        if self._store.held:
            return False
        try:
            async with asyncio.timeout(patience):
                await self.wait(number)
        except TimeoutError:
            return False
        return True


class OutboxQueue(Generic[T]):
    """An ordered queue of items for one receiver. Each item may leave when its change is durable. `changed` is called
    when the first item may leave, either by `put` or in a later iteration of the event loop.
    """

    def __init__(self, outbox: Outbox, changed: Callable[[], object]) -> None:
        self.items: deque[tuple[T, int]] = deque()
        """The items that have not left yet, each with the number of its change."""
        self._outbox = outbox
        self._is_durable = outbox.is_durable
        self._changed = changed
        self._awaited = 0

    def put(self, item: T, number: int) -> None:
        """Add an item that may leave once the change with this number is durable."""
        self.items.append((item, number))
        if self._is_durable(self.items[0][1]):
            self._changed()
        else:
            self._wait()

    def next(self) -> T | None:
        """Remove and return the first item if it may leave. Otherwise start waiting for its change and return None."""
        if not self.items:
            return None
        item, number = self.items[0]
        if self._is_durable(number):
            self.items.popleft()
            return item
        self._wait()
        return None

    def take(self) -> list[T]:
        """Remove and return all items that may leave. If any items remain, start waiting for the change of the first
        one.
        """
        items, is_durable, released = self.items, self._is_durable, []
        while items and is_durable(items[0][1]):
            released.append(items.popleft()[0])
        if items:
            self._wait()
        return released

    def _wait(self) -> None:
        number = self.items[0][1]
        if number != self._awaited:
            self._awaited = number
            self._outbox.stage(number, self._release)

    def _release(self, error: StorageError | None) -> None:
        self._awaited = 0
        if isinstance(error, Unwritable):
            # The engine is notified, too, and parks the run. The run's items are then released without
            # waiting.
            asyncio.get_running_loop().call_soon(self._changed)
        else:
            self._changed()
