"""A poll loop: takes one item after another from a handle and hands each on, until the handle says that it is over.

Between receiving an item and handing it on there is no await, so none is lost. A loop is never cancelled: it
ends by `Shutdown`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from hourglass._bridge.handle import HandleBroken, Shutdown

T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 10.0


class PollLoop(Generic[T]):
    """Polls until `Shutdown`. An error that is not final makes it pause; `HandleBroken` ends it with that
    error.
    """

    def __init__(self, name: str, poll: Callable[[], Awaitable[T]], hand_on: Callable[[T], None]) -> None:
        self.name = name
        self.received = 0
        self._poll = poll
        self._hand_on = hand_on

    async def run(self) -> None:
        """Poll until the end."""
        pause = _FIRST_PAUSE
        while True:
            try:
                item = await self._poll()
            except Shutdown:
                return
            except HandleBroken:
                raise
            except Exception as error:
                logger.error("%s: poll failed, again in %.1f s", self.name, pause, exc_info=error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            pause = _FIRST_PAUSE
            self.received += 1
            self._hand_on(item)
