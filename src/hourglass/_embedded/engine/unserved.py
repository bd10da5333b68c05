"""The word that a workflow which somebody waits for stands in a queue that no worker serves.

Must not know: how a request finds its engine. That there is no worker at all is said elsewhere (`patience`); here
there is one, for other queues, and the wait would be as long and as silent. Invariant: a queue is named once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from hourglass._contract import service as s
from hourglass._contract.service import GetPollers
from hourglass._embedded import waiting
from hourglass.errors import HourglassError

_log = logging.getLogger("hourglass")


class UnservedNotice:
    """Looks after waits that take long. Belongs to one event loop."""

    def __init__(self, path: str, call: Callable[[s.Request[Any]], Awaitable[Any]]) -> None:
        self._path = path
        self._call = call
        self._said: set[str] = set()
        self._looks: set[asyncio.Task[None]] = set()

    def watch(self, request: s.Request[Any]) -> asyncio.TimerHandle | None:
        """A request begins; if it is a wait, whoever waits cancels what this gives when it ends."""
        if not isinstance(request, s.WaitForClose):
            return None
        return asyncio.get_running_loop().call_later(waiting.SILENCE, self._begin, request)

    async def close(self) -> None:
        """Look no more."""
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    def _begin(self, request: s.WaitForClose) -> None:
        look = asyncio.get_running_loop().create_task(self._look(request))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self, request: s.WaitForClose) -> None:
        try:
            asked = s.DescribeWorkflow(workflow_id=request.workflow_id, run_id=request.run_id)
            queue: str = (await self._call(asked)).summary.task_queue
            found = await self._call(GetPollers(task_queue=queue))
        except HourglassError:
            return  # a wait must not fail because nobody could find out
        if found.pollers or not found.served or queue in self._said:
            return
        self._said.add(queue)
        served = ", ".join(repr(each) for each in found.served)
        _log.warning(
            "workflow %s waits in the task queue %r, which no worker serves: the worker on %s serves %s",
            request.workflow_id,
            queue,
            self._path,
            served,
        )
