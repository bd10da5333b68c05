"""The activities that the programs of the corpus call while they are recorded."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError


class Activities:
    """The activities of the programs, with gates for one recording."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}

    def gate(self, name: str) -> asyncio.Event:
        """Return the gate that an activity of this name waits at."""
        return self.gates.setdefault(name, asyncio.Event())

    @activity.defn
    async def echo(self, value: Any) -> Any:
        return value

    @activity.defn
    async def gated(self, name: str) -> str:
        """Return the name once its gate is open."""
        await self.gate(name).wait()
        return name

    @activity.defn
    async def fails(self, name: str) -> str:
        raise ApplicationError("failed " + name, type="Failed", non_retryable=True)

    @activity.defn
    async def flaky(self, name: str) -> str:
        """Fail twice, then return."""
        if activity.info().attempt < 3:
            raise RuntimeError("not yet")
        return name

    @activity.defn
    async def beats(self) -> None:
        """Heartbeat until cancelled."""
        while True:
            activity.heartbeat()
            await asyncio.sleep(0.1)

    @activity.defn
    async def work(self, pause: int, fails: bool, facts: list[Any]) -> list[Any]:
        """Take `pause` milliseconds, then return or fail. Heartbeat, so that cancellation arrives."""
        for _ in range(0, pause, 20):
            activity.heartbeat()
            await asyncio.sleep(0.02)
        if fails:
            raise ApplicationError("failed as told", non_retryable=True)
        return facts

    def all(self) -> list[Any]:
        return [self.echo, self.gated, self.fails, self.flaky, self.beats, self.work]
