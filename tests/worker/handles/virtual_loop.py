"""An event loop whose time jumps to the next timer when no callback is ready: timeouts of half a minute take no real
time.

If no timer is scheduled either, the test would never end, and `Stuck` is raised.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(BaseException):
    """No callback is ready and no timer is scheduled."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is scheduled, and the test waits")
        if timeout > 0:
            self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(body())


async def settle() -> None:
    """Run all ready callbacks without advancing the time."""
    for _ in range(30):
        await asyncio.sleep(0)
