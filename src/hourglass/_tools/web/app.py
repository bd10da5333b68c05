"""The routes, and the threads that run their handlers. A handler that only reads may be abandoned; a handler that changes
data runs to completion.

If the engine becomes unreachable, pages return an error immediately, and forms are rejected before they change anything.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hourglass._http.access import Access
from hourglass._http.names import OwnNames
from hourglass._tools.web import finding, requests, security
from hourglass._tools.web.actions import PageActions
from hourglass._tools.web.bulk import BulkOperations
from hourglass._tools.web.login import LoginPages
from hourglass._tools.web.reading import PageReads, task_queues, worker_facts
from hourglass._tools.web.replays import ReplayFailedError
from hourglass._tools.web.site import Site
from hourglass.client import TaskQueueDescription
from hourglass.errors import (
    HourglassError,
    ScheduleNotFoundError,
    ServiceError,
    UsageError,
    WorkflowNotFoundError,
)

# Server-sent events only report that the content of an open page has changed, and the page fetches it again.
# So a page holds no second copy of the data, and a page that stays open all day does not grow. Changes are
# detected by comparing a short fingerprint of the content (`fingerprint_of`) every second while the page is
# open. Problems are events too: the page displays the message and removes it afterwards.


PAUSE = 1.0
SLOW_PAUSE = 2.0
"""The pause in seconds between checks that need many requests, i.e. checks of task queues."""

_SILENCE = 15.0

Fingerprint: TypeAlias = Callable[[], Awaitable[tuple[str, str]]]
"""A function that returns a short fingerprint of a page's content (a number of events, a hash), and a message if there is a
problem.
"""


async def changes(
    fingerprint: Fingerprint, gone: Callable[[], Awaitable[bool]], pause: float = PAUSE
) -> AsyncIterator[bytes]:
    """Yield the server-sent events for an open page until the page is closed."""
    previous: str | None = None
    shown_trouble: str | None = None
    quiet = 0.0
    while not await gone():
        current: str | None = None
        try:
            current, trouble = await fingerprint()
        except (HourglassError, ValueError) as error:  # ValueError: a malformed time or page in the address
            trouble = str(error).partition("\n")[0]
        if trouble != shown_trouble:
            yield event("trouble", {"message": trouble}) if trouble else event("well", {})
            shown_trouble, quiet = trouble, 0.0
        if current is not None:
            # The first check counts, too, because the page may have changed between its rendering and this connection.
            if current != previous:
                yield event("change", {})
                quiet = 0.0
            previous = current
        await sleep(pause)
        quiet += pause
        if quiet >= _SILENCE:  # so that a closed connection is noticed
            yield b": still here\n\n"
            quiet = 0.0


def fingerprint_of(site: Site, operations: BulkOperations, request: Request) -> str:
    """Return a fingerprint of the current content of a page: a run, an operation, the workers, or a list."""
    client, params = site.client, request.query_params
    if "state" in params:
        return ""
    if "run" in params:
        description = client.get_workflow_handle(params.get("id", ""), run_id=params["run"]).describe()
        pending = [
            (activity.id, activity.attempt, activity.state) for activity in description.pending_activities
        ]
        updates = [update.id for update in description.pending_updates]
        return f"{description.history_length} {description.status} {description.task_attempt} {pending} {updates}"
    if "operation" in params:
        operation = operations.find(requests.number(request, "operation") or 0)
        return "" if operation is None else f"{operation.done} {operation.failed} {operation.ended}"
    if "workers" in params:
        return f"{[_queue(entry) for entry in task_queues(client)]} {[worker_facts(entry) for entry in site.workers()]}"
    search, now = requests.search(request), datetime.now(UTC)
    page = client.list_page(finding.visible_filter(client, search, now), page_size=finding.PAGE_SIZE)
    problems = site.problems(page.items)
    rows = [(run.run_id, run.status, problems.get(run.run_id)) for run in page.items]
    return f"{rows} {finding.counts(client, search, now)}"


def _queue(queue: TaskQueueDescription) -> TaskQueueDescription:
    """Return the queue without the pollers' last poll times, because these always change."""
    tasks, activities = (
        tuple(replace(poller, last_seen=None) for poller in pollers)
        for pollers in (queue.workflow_pollers, queue.activity_pollers)
    )
    return replace(queue, workflow_pollers=tasks, activity_pollers=activities)


def event(name: str, data: object) -> bytes:
    """Return a server-sent event in its wire format."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


T = TypeVar("T")

_MAX_SLOW_REQUESTS = 8
_HEALTH_INTERVAL = 0.2


class _UnreachableError(ServiceError):
    """The engine cannot be reached at present."""


_STATUSES = (
    ((WorkflowNotFoundError, ScheduleNotFoundError), 404),
    (PermissionError, 403),
    ((UsageError, ValueError), 400),
    (ReplayFailedError, 500),
    (HourglassError, 503),
)
"""The HTTP status of a page for each kind of error; the first matching row counts."""


class PageApp:
    """The web application of one site."""

    def __init__(self, site: Site, login: LoginPages) -> None:
        self._site = site
        self._login = login
        self.operations = BulkOperations()
        self._reads = PageReads(site, self.operations)
        self._actions = PageActions(site, self.operations)
        # Handlers that query workflow code or replay it may take seconds, and must not occupy all threads.
        self._slow = anyio.CapacityLimiter(_MAX_SLOW_REQUESTS)

    def _page_handler(
        self, handle: Callable[[Request], Response], *, slow: bool = False
    ) -> Callable[[Request], Any]:
        """Return a route handler for a page, on a thread that is abandoned if the engine becomes unreachable."""

        async def respond(request: Request) -> Response:
            limiter = self._slow if slow else None
            try:
                return await self._run_while_reachable(lambda: handle(request), limiter)
            except _UnreachableError as unreachable:
                return self._reads.failure(request, 503, str(unreachable))

        return respond

    def _form_handler(
        self, handle: Callable[[Request, Mapping[str, Any]], Response]
    ) -> Callable[[Request], Any]:
        """Return a route handler for a form. The action runs to completion: it may have taken effect already."""

        async def respond(request: Request) -> Response:
            if unreachable := self._site.health_monitor.health().unreachable:
                return self._reads.failure(request, 503, f"no action was performed: {unreachable}")
            if self._site.read_only:
                raise PermissionError("this web UI is read-only")
            return await anyio.to_thread.run_sync(handle, request, await requests.fields(request))

        return respond

    async def _run_while_reachable(
        self, call: Callable[[], T], limiter: anyio.CapacityLimiter | None = None
    ) -> T:
        health = self._site.health_monitor.health
        if unreachable := health().unreachable:
            raise _UnreachableError(unreachable)
        task = asyncio.ensure_future(anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter))
        try:
            while not (await asyncio.wait({task}, timeout=_HEALTH_INTERVAL))[0]:
                if unreachable := health().unreachable:
                    raise _UnreachableError(unreachable)
            return task.result()
        finally:
            task.cancel()

    async def live(self, request: Request) -> Response:
        """Stream the server-sent events for an open page."""

        async def fingerprint() -> tuple[str, str]:
            current = await self._run_while_reachable(
                lambda: fingerprint_of(self._site, self.operations, request)
            )
            return current, self._site.health_monitor.health().notice

        pause = SLOW_PAUSE if "workers" in request.query_params else PAUSE
        events = changes(fingerprint, request.is_disconnected, pause)
        return StreamingResponse(events, media_type="text/event-stream")

    async def failed(self, request: Request, error: Exception) -> Response:
        """Render an error as a page."""
        status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
        if isinstance(error, ServiceError) and error.status == "INVALID_ARGUMENT":
            status = 400
        return self._reads.failure(request, status, str(error) or type(error).__name__)

    def app(self) -> Starlette:
        """Return the application with all routes."""
        run = "/workflows/{id}/{run_id}"
        reads, actions = self._reads, self._actions
        routes = [
            Route("/", reads.home),
            Route("/workflows", self._page_handler(reads.workflows)),
            Route("/workflows/chart", self._page_handler(reads.chart)),
            Route("/workflows/problems", self._page_handler(reads.problems)),
            Route("/start", reads.start_page),
            Route("/start", self._form_handler(actions.start), methods=["POST"]),
            Route("/bulk", self._form_handler(actions.bulk), methods=["POST"]),
            Route("/operations/{number:int}", reads.operation),
            Route(
                "/operations/{number:int}/stop", self._form_handler(actions.stop_operation), methods=["POST"]
            ),
            Route("/schedules", self._page_handler(reads.schedules)),
            Route("/schedules", self._form_handler(actions.act_on_schedules), methods=["POST"]),
            Route("/schedules/{id}", self._page_handler(reads.schedule)),
            Route("/schedules/{id}/{action}", self._form_handler(actions.act_on_schedule), methods=["POST"]),
            Route("/workers", self._page_handler(reads.workers)),
            Route("/limits", self._page_handler(reads.limits, slow=True)),
            Route("/live", self.live),
            Route("/health", reads.health),
            Route(security.LOGIN, self._login.show),
            Route(security.LOGIN, self._login.submit, methods=["POST"]),
            Mount("/static", StaticFiles(directory=str(files("hourglass._tools.web") / "static"))),
            Route("/workflows/{id}", self._page_handler(reads.latest)),
            Route(f"{run}/why", self._page_handler(reads.why, slow=True)),
            Route(f"{run}/unread", self._page_handler(reads.unread, slow=True)),
            Route(f"{run}/history", self._page_handler(reads.history)),
            Route(f"{run}/history.json", self._page_handler(reads.history_json)),
            Route(f"{run}/moments", self._page_handler(reads.moments, slow=True)),
            Route(f"{run}/reset", self._page_handler(reads.reset_page)),
            Route(f"{run}/{{action}}", self._form_handler(actions.act), methods=["POST"]),
            Route(run, self._page_handler(reads.run)),
        ]
        kinds = (Exception, HourglassError, ValueError, PermissionError)
        handlers: Any = dict.fromkeys(kinds, self.failed)
        return Starlette(routes=routes, exception_handlers=handlers)


def build(site: Site, *, names: OwnNames, access: Access) -> security.RequestGuard:
    """Return the application of a site, behind its `RequestGuard`."""
    app = PageApp(site, LoginPages(access, names)).app()
    return security.RequestGuard(app, names=names, access=access)
