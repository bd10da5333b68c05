"""What is read: the handlers of all pages. Each asks the client and chooses the page; none changes anything.

They are plain functions and run on threads, as the client blocks (`app`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from time import time_ns
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from hourglass._evaluator.built_in_queries import UNREAD_SIGNALS
from hourglass._history.events import HistoryEvent
from hourglass._tools.diagnosis.asking import WhyContext, kept_by_engine, plain_form
from hourglass._tools.timeline.spans import Story
from hourglass._tools.timeline.watching import Watched
from hourglass._tools.web import addresses, asked, finding, forms, pages, run_view, site
from hourglass._tools.web.bulk import BulkOperations
from hourglass._tools.web.calendar import year_of
from hourglass._tools.web.site import Site
from hourglass._tools.web.waterfall import waterfall
from hourglass.client import (
    Client,
    TaskQueueDescription,
    WorkflowDescription,
    WorkflowExecution,
    WorkflowStatus,
)
from hourglass.errors import HourglassError, ServiceError, UsageError
from hourglass.replay import changes

_EVENTS_A_PAGE = 200
_RUNS_OF_AN_ID = 30
_MOST_KEEPERS = 50
_MOST_QUEUES = 20
_NEWEST = 200
_FAULTS_SHOWN = 20
_PATIENCE = 3.0


class PageReads:
    """The pages of one site."""

    def __init__(self, site: Site, operations: BulkOperations) -> None:
        self._site = site
        self._operations = operations

    # --- workflows ----------------------------------------------------------------------------------------------------

    def home(self, request: Request) -> Response:
        """The list is what readers come for."""
        return RedirectResponse("/workflows", 303)

    def workflows(self, request: Request) -> Response:
        """The list, filtered."""
        search = asked.search(request)
        try:
            found, error = finding.listing(self._site.client, search, self._site.problems), ""
        except (ValueError, HourglassError) as raised:
            found, error = None, str(raised)
        known = tuple(forms.workflows_in(self._site.modules))
        return HTMLResponse(pages.workflows(asked.view(self._site, request), search, found, error, known))

    def chart(self, request: Request) -> Response:
        """Starts, ends and failures over time."""
        try:
            found = finding.chart(self._site.client, asked.search(request))
        except (ValueError, HourglassError):
            found = ()
        return HTMLResponse(pages.chart(asked.view(self._site, request), found))

    def problems(self, request: Request) -> Response:
        """How many open runs do not go on, by what keeps them; a part of the page, which may take a moment."""
        search = asked.search(request)
        try:
            found = finding.problem_counts(self._site.client, search)
        except (ValueError, HourglassError):
            found = ()
        return HTMLResponse(pages.problem_counts(asked.view(self._site, request), search, found))

    def latest(self, request: Request) -> Response:
        """From a workflow's id to its latest run."""
        workflow_id = asked.part(request, "id")
        description = self._site.client.get_workflow_handle(workflow_id).describe()
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(addresses.run(workflow_id, description.run_id) + query, 303)

    def start_page(self, request: Request) -> Response:
        """The form to start a workflow."""
        known = forms.workflows_in(self._site.modules)
        return HTMLResponse(
            pages.start(asked.view(self._site, request), known, request.query_params.get("type", ""))
        )

    # --- one run ------------------------------------------------------------------------------------------------------

    def run(self, request: Request) -> Response:
        """One run."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        description, story, events = self._told(request, workflow_id, run_id)
        drawn = waterfall(story, start=asked.number(request, "from"), end=asked.number(request, "to"))
        wanted = request.query_params.get("span", "")
        span = next((row.span for row in drawn.rows if row.key == wanted), None)
        messages = {
            action: forms.messages_of(self._site.modules, description.workflow_type, kind)
            for action, kind in (("signal", "signals"), ("query", "queries"), ("update", "updates"))
        }
        chosen = {action: request.query_params.get(action, "") for action in messages}
        return HTMLResponse(
            pages.run(
                asked.view(self._site, request),
                description,
                story,
                drawn,
                span,
                run_view.chain(story),
                run_view.unheard(events) if story.end is None else (),
                self._runs_of(workflow_id),
                self._site.problems([description]),
                messages,
                chosen,
                request.query_params.get("notice", ""),
            )
        )

    def _runs_of(self, workflow_id: str) -> tuple[WorkflowExecution, ...]:
        """All runs of an id, newest first: one after another by continue-as-new, retries, cron, resets, or started anew."""
        query = f"WorkflowId = {finding.text(workflow_id)}"
        try:
            found = self._site.client.list_page(query, page_size=_RUNS_OF_AN_ID).items
        except ServiceError:  # an id that no filter can hold
            return ()
        return tuple(sorted(found, key=_started, reverse=True))

    def _told(
        self, request: Request, workflow_id: str, run_id: str
    ) -> tuple[WorkflowDescription, Story, tuple[HistoryEvent, ...]]:
        peek = self._site.peek(asked.asks_for_payloads(request))
        shows = asked.shows_payloads(self._site, request)
        watched = Watched(self._site.client, workflow_id, run_id, peek, failures=shows)
        description, events = watched.look()
        return description, watched.story_from(description, events), events

    def why(self, request: Request) -> Response:
        """Why it stands as it does; a part of the page, which may take seconds."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        try:
            context = WhyContext(self._site.client, failures=asked.shows_payloads(self._site, request))
            found, error = context.diagnosis(workflow_id, run_id), ""
        except HourglassError as raised:
            found, error = None, str(raised)
        return HTMLResponse(pages.why(asked.view(self._site, request), found, error))

    def unread(self, request: Request) -> Response:
        """Signals that the run's code has got and not read; a part of the page, which asks a worker."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        client = self._site.client
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        found: object = None
        with suppress(HourglassError):
            description = handle.describe()
            is_open = description.status is WorkflowStatus.RUNNING
            if (
                is_open
                and client.describe_task_queue(description.task_queue, rpc_timeout=_PATIENCE).workflow_pollers
            ):
                found = handle.query(UNREAD_SIGNALS, rpc_timeout=_PATIENCE)
        told = {str(name): count for name, count in found.items()} if isinstance(found, dict) else {}
        return HTMLResponse(pages.unread(asked.view(self._site, request), told))

    def history(self, request: Request) -> Response:
        """The events as a table, a page of them."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        handle = self._site.client.get_workflow_handle(workflow_id, run_id=run_id)
        newest_first = request.query_params.get("order") == "newest"
        found = handle.history_page(
            page_size=_EVENTS_A_PAGE,
            page_token=bytes.fromhex(request.query_params.get("page", "")),
            newest_first=newest_first,
        )
        peek = self._site.peek(True) if asked.shows_payloads(self._site, request) else None
        shown = run_view.HistoryTable(
            workflow_id=workflow_id,
            run_id=run_id,
            rows=tuple(run_view.event_row(each, peek) for each in found.events),
            total=handle.describe().history_length,
            newest_first=newest_first,
            next_page=found.next_page_token.hex(),
        )
        return HTMLResponse(pages.history(asked.view(self._site, request), shown))

    def history_json(self, request: Request) -> Response:
        """The history as a file: what `hourglass replay` reads. Payloads are in it as they travel."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        text = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history().to_json(indent=2)
        name = quote(f"{workflow_id}-{run_id}.json", safe="")
        return Response(
            text,
            media_type="application/json",
            headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"},
        )

    def reset_page(self, request: Request) -> Response:
        """What a reset to a point would do, before it is done."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        _, story, events = self._told(request, workflow_id, run_id)
        plan = run_view.reset_plan(events, story, asked.number(request, "event") or 0)
        return HTMLResponse(pages.confirm_reset(asked.view(self._site, request), workflow_id, run_id, plan))

    # --- back in time -------------------------------------------------------------------------------------------------

    def moments(self, request: Request) -> Response:
        """A run at one moment of its past."""
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        time_travel = self._site.time_travel
        if time_travel is None:
            raise UsageError(
                "no code is loaded: start the page with the file of the workflows, hourglass ui app.py"
            )
        history = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history()
        walked = time_travel.walk(history, asked.number(request, "at"))
        known, number = walked.moments, walked.number
        at = known[number] if known else None
        before = known[number - 1] if number else None
        sources = {
            frame_site: run_view.source(*frame_site)
            for fiber in (at.fibers or () if at is not None else ())
            for frame_site in ((frame.file, frame.line) for frame in fiber.frames)
        }
        changed = changes(before, at) if at is not None and before is not None else ()
        if not asked.shows_payloads(self._site, request):
            at = at and run_view.hide_moment(at)
            changed = tuple(run_view.hide_change(each) for each in changed)
        error = run_view.replay_error(walked, shows=asked.shows_payloads(self._site, request))
        return HTMLResponse(
            pages.moments(
                asked.view(self._site, request), workflow_id, run_id, known, at, changed, sources, error
            )
        )

    # --- the others ---------------------------------------------------------------------------------------------------

    def operation(self, request: Request) -> Response:
        """How far it has come."""
        found = self._operations.find(int(request.path_params["number"]))
        if found is None:
            return asked.failure(self._site, request, 404, "no such operation")
        return HTMLResponse(pages.operation(asked.view(self._site, request), found))

    def schedules(self, request: Request) -> Response:
        """All schedules."""
        try:
            found, error = list(self._site.client.list_schedules()), ""
        except HourglassError as raised:
            found, error = [], str(raised)
        return HTMLResponse(pages.schedules(asked.view(self._site, request), found, error))

    def schedule(self, request: Request) -> Response:
        """One schedule."""
        handle = self._site.client.get_schedule_handle(asked.part(request, "id"))
        notice = request.query_params.get("notice", "")
        found = handle.describe()
        try:
            year = year_of(found.schedule.spec, datetime.now(UTC))
        except (HourglassError, ValueError):  # a server may know kinds of specs that we do not
            year = ()
        return HTMLResponse(pages.schedule(asked.view(self._site, request), found, year, notice))

    def workers(self, request: Request) -> Response:
        """Task queues, who serves them and what waits there; the workers of this process in detail."""
        try:
            queues, error = task_queues(self._site.client), ""
        except HourglassError as raised:
            queues, error = [], str(raised)
        local = [worker_facts(worker) for worker in self._site.workers()]
        if not asked.shows_payloads(self._site, request):
            local = [run_view.hide_parked(facts) for facts in local]
        return HTMLResponse(pages.workers(asked.view(self._site, request), queues, local, error))

    def limits(self, request: Request) -> Response:
        """Slots: which workflows hold them, which wait. Throttles: how many turns are to come."""
        client = self._site.client
        slots: list[dict[str, Any]] = []
        throttles: list[dict[str, Any]] = []
        bursts: list[dict[str, Any]] = []
        error = ""
        try:
            for limit in kept_by_engine(client) or ():
                if limit.slots is not None:
                    slots.append({"id": limit.id, **plain_form(limit.slots)})
                elif limit.turns is not None:
                    throttles.append({"id": limit.id, **plain_form(limit.turns)})
                else:
                    bursts.append(plain_form(limit))
            for kind, query, found in (("slots", "slots", slots), ("throttle", "given", throttles)):
                keepers = f"WorkflowType = 'hourglass.{kind}' AND ExecutionStatus = 'Running'"
                for each in client.list_workflows(keepers, limit=_MOST_KEEPERS):
                    answer = client.get_workflow_handle(each.id).query(query, rpc_timeout=_PATIENCE)
                    told = answer if isinstance(answer, dict) else {}
                    found.append({"id": each.id, "run_id": each.run_id, **told})
        except HourglassError as raised:
            error = str(raised)
        now = time_ns() // 1000  # turns are moments in microseconds
        to_come = [
            {**each, "given": [turn for turn in each.get("given", ()) if turn.get("at", 0) > now]}
            for each in throttles
        ]
        return HTMLResponse(pages.limits(asked.view(self._site, request), slots, to_come, bursts, error))

    def health(self, request: Request) -> Response:
        """Whether the page answers, and whether what it shows does."""
        trouble = site.look(self._site.client).trouble
        return JSONResponse({"ok": False, "error": trouble}, 503) if trouble else JSONResponse({"ok": True})


def _started(run: WorkflowExecution) -> float:
    return 0.0 if run.start_time is None else run.start_time.timestamp()


def task_queues(client: Client) -> list[TaskQueueDescription]:
    """The task queues that are served or that new runs use."""
    usual = client.describe_task_queue(rpc_timeout=_PATIENCE)
    newest = client.list_workflows(limit=_NEWEST)
    names = dict.fromkeys([*usual.served, *(each.task_queue for each in newest if each.task_queue)])
    others = [name for name in names if name != usual.name][:_MOST_QUEUES]
    with ThreadPoolExecutor(len(others) + 1, "hourglass-ui-queues") as threads:
        rest = threads.map(lambda name: client.describe_task_queue(name, rpc_timeout=_PATIENCE), others)
        found = [*rest]
    return found if others and usual.name not in names and _is_bare(usual) else [usual, *found]


def _is_bare(queue: TaskQueueDescription) -> bool:
    return not queue.workflow_pollers and not queue.activity_pollers


def worker_facts(worker: Any) -> dict[str, Any]:
    """A worker of this process: its tree, what went wrong in it, its figures, and what it says of its health."""
    counted = worker.statistics()
    return {
        "queues": worker.task_queue,
        "tree": worker.tree.render(),
        "faults": worker.tree.faults()[:_FAULTS_SHOWN],
        "status": worker._report(),
        "slots": (
            ("workflow tasks", counted.open_activations, counted.workflow_slots),
            ("activities", counted.running_activities, counted.activity_slots),
            ("cached workflows", counted.cached_workflows, counted.cache_size),
            ("stuck lanes", counted.stuck_lanes, counted.lanes),
        ),
        "counted": (
            ("activations", counted.activations),
            ("failed tasks", counted.failed_tasks),
            ("cache misses", counted.cache_misses),
            ("restarts", counted.restarts),
        ),
        "parked": counted.parked,
    }
