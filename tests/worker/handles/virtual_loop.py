"""An event loop whose time jumps to the next timer when nobody has anything to do: limits of half a minute take no time.

When nothing is scheduled at all and the test has not ended, it is stuck, and says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(BaseException):
    """Everybody waits for somebody else."""


class _Jumping(selectors.SelectSelector):
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
    """See the module."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a test on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(body())


async def settle() -> None:
    """Let everything run that can, without letting time pass."""
    for _ in range(30):
        await asyncio.sleep(0)
