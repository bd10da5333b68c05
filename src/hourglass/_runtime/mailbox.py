"""A mailbox: the way of other threads to the control loop, one wake-up for a whole burst.

Waking a loop costs a write to a pipe, and often a change of threads. What is posted while the loop is already on its way waits
there with the rest. Must not know what is posted. Invariants: everything is delivered, in the order in which it was posted; what
one delivery raises harms no other; in a process that was forked nothing is delivered.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")


class Mailbox:
    """Belongs to the loop that made it; `post` may be called in any thread."""

    __slots__ = ("_letters", "_pid", "_woken", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._letters: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._woken = False

    def post(self, callback: Callable[[T], object], argument: T) -> None:
        """Have something called on the control loop."""
        if os.getpid() != self._pid:
            return
        self._letters.append((callback, argument))
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the control loop is closed: nobody is left to be told

    def _deliver(self) -> None:
        self._woken = False  # first: what is posted from now on wakes the loop again
        try:
            while self._letters:
                callback, argument = self._letters.popleft()
                try:
                    callback(argument)
                except Exception:
                    logger.exception("what another thread said could not be taken")
        finally:
            if (
                self._letters and not self._woken
            ):  # a cancellation or an exit got out: the rest is delivered next
                self._woken = True
                self.loop.call_soon(self._deliver)
