"""A coroutine that runs on the control loop for somebody else: awaited on another event loop, or waited for by a thread.

`asyncio.run_coroutine_threadsafe`, with `asyncio.wrap_future` for a loop, does the same with a future of each kind, a condition
and two wake-ups; here a loop has one future, and answers that come together wake it once, and a thread has one lock. Invariants:
an answer is settled by whoever waits for it; whoever gives up cancels the coroutine, and hears nothing of it any more.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from hourglass._runtime.mailbox import Mailbox

T = TypeVar("T")


class ForeignCall(Generic[T]):
    """See the module. `answer` is a future of the loop that waits."""

    __slots__ = ("_answer", "_coro", "_mailbox", "_task")

    def __init__(self, coro: Coroutine[Any, Any, T], answer: asyncio.Future[T], mailbox: Mailbox) -> None:
        self._answer = answer
        self._coro = coro
        self._mailbox = mailbox
        self._task: asyncio.Task[T] | None = None

    # --- on the control loop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Start the coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Comes behind `begin`: both are called from one thread."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._mailbox.post(self._settle, task)

    # --- on the other -----------------------------------------------------------------------------

    def _settle(self, task: asyncio.Task[T]) -> None:
        if self._answer.done():  # given up: nobody wants to hear it, asyncio neither
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


class BlockingCall(Generic[T]):
    """The same for a thread, which blocks."""

    __slots__ = ("_bell", "_coro", "_task")

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        self._coro = coro
        self._task: asyncio.Task[T] | None = None
        self._bell = threading.Lock()
        self._bell.acquire()

    # --- on the control loop ----------------------------------------------------------------------

    def begin(self) -> None:
        """Start the coroutine."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Comes behind `begin`: both are called from one thread."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # read, or asyncio complains where nobody waits any more
        self._bell.release()

    # --- in the thread ----------------------------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Whether it has ended; waits so long at most. Once it has, it is not asked again."""
        return self._bell.acquire(timeout=seconds)

    def result(self) -> T:
        """What came of it, once it has ended. Raises `asyncio.CancelledError` where the control loop cancelled it."""
        assert self._task is not None
        return self._task.result()
