"""Calls from other threads to an event loop, with a single wake-up for a burst of calls (`Mailbox`).

Waking a loop requires a write to a pipe, and often a thread switch. Calls that are posted while a wake-up is
pending are delivered together.

Invariants: calls are delivered in the order in which they were posted. An exception in one call does not affect
the others. In a forked process, no calls are delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from hourglass import _forks

T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")


class Mailbox:
    """A queue of calls from any thread to the loop on which the mailbox was created."""

    __slots__ = ("_calls", "_pid", "_woken", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._pid = _forks.pid
        self._calls: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._woken = False

    def post(self, callback: Callable[[T], object], argument: T) -> None:
        """Call `callback(argument)` on the loop. May be called on any thread."""
        if _forks.pid != self._pid:
            return
        self._calls.append((callback, argument))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the loop is closed

    def _deliver(self) -> None:
        self._woken = False  # reset first, so that calls posted from now on wake the loop
        try:
            while self._calls:
                callback, argument = self._calls.popleft()
                try:
                    callback(argument)
                except Exception:
                    logger.exception("a call from another thread failed")
        finally:
            # A cancellation or an exit interrupted this delivery. Continue in the next iteration of the loop.
            if self._calls and not self._woken:
                self._woken = True
                self.loop.call_soon(self._deliver)
