"""Monotonic time and timers, as a part that tests replace. Nothing else in this package knows what time it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> None:
        """Make it not happen. Harmless once it has."""


class Clock(Protocol):
    """Monotonic time in seconds, and callbacks that are due later on the loop's thread."""

    def now(self) -> float:
        """The time."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back after so many seconds."""
        ...


class LoopClock:
    """The running event loop's own clock."""

    def now(self) -> float:
        """The loop's monotonic time."""
        return asyncio.get_running_loop().time()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """A timer of the loop."""
        return asyncio.get_running_loop().call_later(delay, callback)
