"""A task queue that takes nothing by itself: no poll waits in the engine, so that all that is taken is a choice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hourglass._contract.handle import ActivityItem, Shutdown
from hourglass._embedded.workers.handle import EngineHandle
from hourglass._engine.events import Activation
from hourglass.testing._queues import ServedQueue

T = TypeVar("T")


class StillQueue(ServedQueue):
    """What serves one task queue of an exploration."""

    def polled(self, *, asked: bool = False) -> list[Activation | ActivityItem]:
        """What is there without being taken: replays, evictions, cancellations, and queries, if any was `asked`."""
        handle = self._still
        found: list[Activation | ActivityItem] = []
        while (handle.has_activation or asked) and (activation := self.take_task()) is not None:
            found.append(activation)
        while handle.has_activity and (item := self.take_attempt()) is not None:
            found.append(item)
        return found

    def take_task(self) -> Activation | None:
        """One activation, if the engine may give one out."""
        return self._once(self.handle.poll_activation)

    def take_attempt(self) -> ActivityItem | None:
        """One attempt, or the cancellation of one, if the engine may give one out."""
        return self._once(self.handle.poll_activity)

    @property
    def _still(self) -> EngineHandle:
        assert isinstance(self.handle, EngineHandle)
        return self.handle

    def _once(self, poll: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Poll, and do not wait."""
        coro = poll()
        asyncio._set_running_loop(self._loop)
        try:
            coro.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        except Shutdown:
            return None
        finally:
            asyncio._set_running_loop(None)
        coro.close()
        return None
