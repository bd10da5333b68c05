"""Calls that can be ended together from outside, each with an error instead of a cancellation.

Must not know: what is called. As `asyncio.timeout` does it: the tasks that wait are cancelled, and the
cancellation becomes the error where it leaves the call, unless somebody else cancelled the task too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from hourglass.errors import HourglassError

P = ParamSpec("P")
T = TypeVar("T")


class Gone(HourglassError):
    """The engine was closed before it answered: the same request can be asked elsewhere."""


class Interruption:
    """The calls that are under way, until their end. Belongs to one event loop."""

    def __init__(self, error: Callable[[], HourglassError]) -> None:
        self._error = error
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._ended

    async def run(self, call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a call, until `end`. Raises the error from then on."""
        if self._ended:
            raise self._error()
        task = asyncio.current_task()
        if task is None or task in self._tasks:  # a call within a call ends with the outer one
            return await call(*args, **kwargs)
        self._tasks.add(task)
        before = task.cancelling()
        try:
            return await call(*args, **kwargs)
        except asyncio.CancelledError:
            if self.ended and task.uncancel() <= before:
                raise self._error() from None
            raise
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End all calls, and refuse new ones. Safe to call twice."""
        if not self._ended:
            self._ended = True
            for task in tuple(self._tasks):
                task.cancel()
