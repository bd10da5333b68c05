"""The outbox: everything with an effect outside the engine waits here until the change that it depends on is durable.

Such effects are attempts handed to workers, cancellations of attempts, answers and rejections to clients, and the
confirmation of a worker's result. The engine is ahead of its store, so without this wait a crash could lose a change whose
effect somebody has seen.

Must not know: what the effects are. Invariants: an effect is released only when its change, and every change before it, is
durable; it is released at most once; it learns of it if its change can never become durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hourglass._embedded.store.store import Store, Unwritable
from hourglass.errors import StorageError


class Outbox:
    """See the module. `on_failure` is called when the store can write nothing any more."""

    def __init__(self, store: Store, on_failure: Callable[[StorageError], None]) -> None:
        self._store = store
        self._is_durable: Callable[[int], bool] = store.is_durable
        self._on_failure = on_failure

    def stage(self, number: int, effect: Callable[[StorageError | None], object]) -> None:
        """Call `effect(None)` once the change of this number is durable: at once if it is, otherwise in a later turn of the loop.
        Call it with the error if the change can never become durable.
        """
        if self._is_durable(number):
            effect(None)
        else:
            self._store.when_durable(number, partial(self._release, effect))

    def _release(self, effect: Callable[[StorageError | None], object], error: StorageError | None) -> None:
        if error is not None and not isinstance(error, Unwritable):
            self._on_failure(error)
        effect(error)

    async def wait(self, number: int) -> None:
        """Wait until the change of this number is durable. Raises `StorageError` if it can never become durable."""
        if self._is_durable(number):
            return
        try:
            await self._store.durable(number)
        except Unwritable:
            raise  # a fault of this change alone: the store works
        except StorageError as error:
            self._on_failure(error)
            raise

    async def wait_briefly(self, number: int, patience: float) -> bool:
        """Wait for at most `patience` seconds, and not at all while the store cannot write. Return whether the change is
        durable.
        """
        if self._is_durable(number):
            return True
        if self._store.held:
            return False
        try:
            async with asyncio.timeout(patience):
                await self.wait(number)
        except TimeoutError:
            return False
        return True
