"""Server-sent events: an open page hears that what it shows has changed, and fetches it anew.

An event says only that; so a page holds no second copy of the truth, and one left open all day does not grow. What is compared
is a short mark of the content (`mark`), asked for every second while the page is open. That something is the matter is an event,
too: the page says what it is, and that it is over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeAlias

from starlette.requests import Request

from hourglass._built_in import without_keepers
from hourglass._ui import asked, finding
from hourglass._ui.bulk import BulkOperations
from hourglass._ui.reading import task_queues, worker_facts
from hourglass._ui.site import Site
from hourglass.client import TaskQueueDescription
from hourglass.errors import HourglassError

PAUSE = 1.0
SELDOM = 2.0
"""The same for what takes many questions: all task queues."""

_SILENCE = 15.0

Mark: TypeAlias = Callable[[], Awaitable[tuple[str, str]]]
"""What a page shows, so short that it can be compared (a number of events, a hash); and what is the matter, if anything."""


async def changes(
    mark: Mark, gone: Callable[[], Awaitable[bool]], pause: float = PAUSE
) -> AsyncIterator[bytes]:
    """Events for one open page, until it is closed."""
    known: str | None = None
    told: str | None = None
    quiet = 0.0
    while not await gone():
        found: str | None = None
        try:
            found, trouble = await mark()
        except HourglassError as error:
            trouble = str(error).partition("\n")[0]
        if trouble != told:
            yield event("trouble", {"message": trouble}) if trouble else event("well", {})
            told, quiet = trouble, 0.0
        if found is not None:
            # The first one, too: what a page shows may have changed between its making and this connection.
            if found != known:
                yield event("change", {})
                quiet = 0.0
            known = found
        await asyncio.sleep(pause)
        quiet += pause
        if quiet >= _SILENCE:  # so that a connection that has gone is noticed
            yield b": still here\n\n"
            quiet = 0.0


def mark(site: Site, operations: BulkOperations, request: Request) -> str:
    """What a page shows now, so short that it can be compared. Its address says which page: a run, an operation, the workers,
    whether all is well and nothing else (`state`), or else a list.
    """
    client, params = site.client, request.query_params
    if "state" in params:
        return ""
    if "run" in params:
        found = client.get_workflow_handle(params.get("id", ""), run_id=params["run"]).describe()
        pending = [(each.id, each.attempt, each.state) for each in found.pending_activities]
        return f"{found.history_length} {found.status} {found.task_attempt} {pending}"
    if "operation" in params:
        operation = operations.find(int(params["operation"]))
        return "" if operation is None else f"{operation.done} {operation.failed} {operation.ended}"
    if "workers" in params:
        return f"{[_queue(each) for each in task_queues(client)]} {[worker_facts(each) for each in site.workers()]}"
    search, now = asked.search(request), datetime.now(UTC)
    page = client.list_page(without_keepers(finding.filter_of(search, now)), page_size=finding.PAGE_SIZE)
    return f"{[(each.run_id, each.status) for each in page.items]} {finding.counts(client, search, now)}"


def _queue(queue: TaskQueueDescription) -> TaskQueueDescription:
    """Without when its pollers were last seen: that is always another moment."""
    tasks, activities = (
        tuple(replace(each, last_seen=None) for each in pollers)
        for pollers in (queue.workflow_pollers, queue.activity_pollers)
    )
    return replace(queue, workflow_pollers=tasks, activity_pollers=activities)


def event(name: str, data: object) -> bytes:
    """One event, as it travels."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
