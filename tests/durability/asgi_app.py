"""A web application with a worker in each of its processes: `uvicorn --workers 3 tests.durability.asgi_app:app`.

`/N` runs a workflow of N concurrent steps that use CPU time, and answers with the processes that executed them.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from hourglass import AsyncClient, Worker, activity, workflow

from . import work


@activity.defn
def compute() -> int:
    end = time.thread_time() + 0.005
    while time.thread_time() < end:
        pass
    return os.getpid()


@workflow.defn
def spread(steps: int) -> list[int]:
    return list(workflow.gather(*[compute.start() for _ in range(steps)]))


class App:
    """An ASGI application: lifespan, and one kind of request."""

    def __init__(self) -> None:
        self._client: AsyncClient | None = None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with (
                await AsyncClient.connect(f"local:{os.environ[work.FILE]}") as self._client,
                Worker(self._client, workflows=[spread], activities=[compute]),
            ):
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        assert self._client is not None
        steps = int(scope["path"].strip("/"))
        done = await self._client.execute_workflow(spread, steps, id=uuid.uuid4().hex)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": " ".join(map(str, done)).encode()})


app = App()
