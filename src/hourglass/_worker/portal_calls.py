"""Coroutines on the control loop, with a caller that waits on another loop (`ForeignCall`) or in a thread
(`BlockingCall`).

A `ForeignCall` needs one future, and a `BlockingCall` one lock. `asyncio.run_coroutine_threadsafe`, with
`asyncio.wrap_future` for a loop, needs a future of each kind, a condition and two wake-ups.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from hourglass._worker.mailbox import Mailbox

T = TypeVar("T")


class _Call(Generic[T]):
    """A coroutine on the control loop."""

    __slots__ = ("_coro", "_task")

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        self._coro = coro
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start the coroutine. Called on the control loop."""
        self._task = asyncio.get_running_loop().create_task(self._coro)
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the coroutine. Called on the control loop after `begin`, because one thread schedules both."""
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        raise NotImplementedError


class ForeignCall(_Call[T]):
    """A coroutine on the control loop that is awaited on another loop. The future `answer` belongs to that loop."""

    __slots__ = ("_answer", "_mailbox")

    def __init__(self, coro: Coroutine[Any, Any, T], answer: asyncio.Future[T], mailbox: Mailbox) -> None:
        super().__init__(coro)
        self._answer = answer
        self._mailbox = mailbox

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._mailbox.post(self._settle, task)

    def _settle(self, task: asyncio.Task[T]) -> None:
        """Set the answer. Called on the caller's loop."""
        if (
            self._answer.done()
        ):  # the caller has stopped waiting; retrieve the exception, so that asyncio does not log it
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(task.result())


class BlockingCall(_Call[T]):
    """A coroutine on the control loop, with a thread that waits for it, blocked on a lock."""

    __slots__ = ("_bell",)

    def __init__(self, coro: Coroutine[Any, Any, T]) -> None:
        super().__init__(coro)
        self._bell = threading.Lock()
        self._bell.acquire()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if the caller has stopped waiting
        self._bell.release()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the coroutine to end. Return whether it has ended. After True, do not call
        this method again.
        """
        return self._bell.acquire(timeout=seconds)

    def result(self) -> T:
        """Return the result of a coroutine that has ended. Raise `asyncio.CancelledError` if the control loop
        cancelled it.
        """
        assert self._task is not None
        return self._task.result()
