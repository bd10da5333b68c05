"""A coroutine that runs on the control loop and is awaited on another event loop.

`asyncio.wrap_future(asyncio.run_coroutine_threadsafe(…))` does the same with a future of each kind, a condition and two wake-ups;
here it is one future, and answers that come together wake the other loop once. Invariants: the answer is settled on its own loop
only; whoever gives up cancels the coroutine, and hears nothing of it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from hourglass._runtime.mailbox import Mailbox

T = TypeVar("T")


class ForeignCall(Generic[T]):
    """See the module. Made on the loop that waits; `answer` is what it waits for."""

    __slots__ = ("_coro", "_mailbox", "_task", "answer")

    def __init__(self, coro: Coroutine[Any, Any, T], mailbox: Mailbox) -> None:
        self.answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._coro = coro
        self._mailbox = mailbox
        self._task: asyncio.Task[T] | None = None

    # --- on the control loop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Start the coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(lambda task: self._mailbox.post(self._settle, task))

    def cancel(self) -> None:
        """Comes behind `begin`: both are called from one thread."""
        if self._task is not None:
            self._task.cancel()

    # --- on the other -----------------------------------------------------------------------------

    def _settle(self, task: asyncio.Task[T]) -> None:
        if self.answer.done():  # given up: nobody wants to hear it, asyncio neither
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            self.answer.cancel()
        elif (error := task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(task.result())
