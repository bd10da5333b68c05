"""What people ask of the engine about its workers: who serves a queue, and which queues are served at all.

Must not know: how a worker polls. Who serves a queue is seen all the time, so it was last seen now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hourglass._contract import service as s
from hourglass._contract import service as watch
from hourglass._embedded.clients.answering import Answer
from hourglass._embedded.engine.engine import Engine


async def pollers(engine: Engine, request: watch.GetPollers) -> Answer[watch.Pollers]:
    """Who takes workflow tasks, or attempts of activities, from a queue."""
    now = engine.clock.now_ns()
    found = tuple(
        watch.Poller(taker.identity, now, taker.version)
        for taker in engine.offers.takers(request.task_queue)
        if (taker.takes_activities if request.activities else taker.takes_workflows)
    )
    current = engine.deployments.current(request.task_queue)
    return Answer(watch.Pollers(found, engine.offers.served(), current), engine.runs.newest)


WATCH_HANDLERS: dict[type[s.Request[Any]], Callable[[Engine, Any], Awaitable[Answer[Any]]]] = {
    watch.GetPollers: pollers,
}
