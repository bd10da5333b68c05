"""The handlers of all pages. Each handler queries the client and selects the page. No handler has side effects.

The handlers are plain functions that run on threads, because the client blocks (see `app`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from time import time_ns
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from hourglass._evaluator.built_in_queries import UNREAD_SIGNALS
from hourglass._history.events import HistoryEvent
from hourglass._tools.diagnosis.asking import WhyContext, kept_by_engine, plain_form
from hourglass._tools.diagnosis.problems import literal
from hourglass._tools.timeline.run_state import problem_of
from hourglass._tools.timeline.spans import Kind, Story
from hourglass._tools.timeline.watching import HIDDEN, Watched
from hourglass._tools.web import addresses, finding, forms, requests, run_view, site
from hourglass._tools.web.calendar import year_of
from hourglass._tools.web.finding import FIELD_NAMES, FIELDS
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
_MAX_LIMITS = 50
_MAX_QUEUES = 20
_NEWEST = 200
_FAULTS_SHOWN = 20
_RPC_TIMEOUT = 3.0
_UNKNOWN = datetime.min.replace(tzinfo=UTC)
_OTHER_PENDING = (Kind.TIMER, Kind.UPDATE, Kind.SIGNAL, Kind.EXTERNAL, Kind.NEXUS, Kind.LOCAL)
"""Kinds of pending steps that a workflow description does not list."""


class PageReads(requests.Handlers):
    """The page handlers of one site."""

    def home(self, request: Request) -> Response:
        """Redirect to the list of workflows."""
        return RedirectResponse("/workflows", 303)

    def workflows(self, request: Request) -> Response:
        """Show the filtered list."""
        search = requests.search(request)
        try:
            listing, error = finding.listing(self._site.client, search, self._site.problems), ""
        except (ValueError, HourglassError) as raised:
            listing, error = None, str(raised)
        items = () if listing is None else listing.items
        known_types = forms.workflows_in(self._site.modules)
        attributes = sorted({name for run in items for name in run.search_attributes}.difference(FIELDS))
        return self._page(
            request,
            "workflows",
            title="Workflows",
            search=search,
            listing=listing,
            error=error,
            types=list(dict.fromkeys([*known_types, *sorted({run.workflow_type for run in items})])),
            fields=[*FIELDS, *attributes],
            field_names=FIELD_NAMES,
        )

    def chart(self, request: Request) -> Response:
        """Show the numbers of starts, ends and failures over time."""
        try:
            buckets = finding.chart(self._site.client, requests.search(request))
        except (ValueError, HourglassError):
            buckets = ()
        most = max((max(bucket.started, bucket.closed) for bucket in buckets), default=0)
        return self._page(request, "chart", buckets=buckets, most=most)

    def problems(self, request: Request) -> Response:
        """Return the number of open runs per problem as a part of a page, because the query may be slow."""
        search = requests.search(request)
        try:
            counts = finding.problem_counts(self._site.client, search)
        except (ValueError, HourglassError):
            counts = ()
        return self._page(request, "problems", search=search, counts=counts)

    def latest(self, request: Request) -> Response:
        """Redirect from a workflow id to its latest run."""
        workflow_id = requests.path_part(request, "id")
        description = self._site.client.get_workflow_handle(workflow_id).describe()
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(addresses.run(workflow_id, description.run_id) + query, 303)

    def start_page(self, request: Request) -> Response:
        """Show the form to start a workflow."""
        return self.start_form(request, request.query_params.get("type", ""))

    def run(self, request: Request) -> Response:
        """Show one run."""
        workflow_id, run_id = requests.run_of(request)
        description, story, events = self._read_run(request, workflow_id, run_id)
        bars = waterfall(story, start=requests.number(request, "from"), end=requests.number(request, "to"))
        selected_key = request.query_params.get("span", "")
        span = next((row.span for row in bars.rows if row.key == selected_key), None)
        messages = {
            action: forms.messages_of(self._site.modules, description.workflow_type, kind)
            for action, kind in (("signal", "signals"), ("query", "queries"), ("update", "updates"))
        }
        runs = self._runs_of(workflow_id)
        problems = {run.run_id: problem for run in runs if (problem := problem_of(run)) is not None}
        return self._page(
            request,
            "run",
            title=description.id,
            run=description,
            story=story,
            waterfall=bars,
            waiting=[step for step in story.spans[1:] if step.end is None and step.kind in _OTHER_PENDING],
            span=span,
            chain=run_view.chain(story),
            unprocessed_signals=run_view.unprocessed_signals(events) if story.end is None else (),
            runs=runs,
            problems={**problems, **self._site.problems([description])},
            messages=messages,
            chosen={action: request.query_params.get(action, "") for action in messages},
            notice=request.query_params.get("notice", ""),
        )

    def _runs_of(self, workflow_id: str) -> tuple[WorkflowExecution, ...]:
        query = f"WorkflowId = {literal(workflow_id)}"
        try:
            runs = self._site.client.list_page(query, page_size=_RUNS_OF_AN_ID).items
        except ServiceError:  # the id cannot be expressed in a filter
            return ()
        return tuple(sorted(runs, key=lambda run: run.start_time or _UNKNOWN, reverse=True))

    def _read_run(
        self, request: Request, workflow_id: str, run_id: str
    ) -> tuple[WorkflowDescription, Story, tuple[HistoryEvent, ...]]:
        peek = self._site.peek(requests.requests_payloads(request))
        shows = self._shows_payloads(request)
        watched = Watched(self._site.client, workflow_id, run_id, peek, failures=shows)
        description, events = watched.fetch()
        return description, watched.story_from(description, events), events

    def why(self, request: Request) -> Response:
        """Return the reasons for the run's state as a part of a page, because the diagnosis may take seconds."""
        workflow_id, run_id = requests.run_of(request)
        try:
            context = WhyContext(self._site.client, failures=self._shows_payloads(request))
            diagnosis, error = context.diagnosis(workflow_id, run_id), ""
        except HourglassError as raised:
            diagnosis, error = None, str(raised)
        return self._page(request, "why", diagnosis=diagnosis, error=error)

    def unread(self, request: Request) -> Response:
        """Return the unhandled signals of a run as a part of a page, because it requires a query to a worker."""
        workflow_id, run_id = requests.run_of(request)
        client = self._site.client
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        answer: object = None
        with suppress(HourglassError):
            description = handle.describe()
            is_open, queue = description.status is WorkflowStatus.RUNNING, description.task_queue
            if is_open and client.describe_task_queue(queue, rpc_timeout=_RPC_TIMEOUT).workflow_pollers:
                answer = handle.query(UNREAD_SIGNALS, rpc_timeout=_RPC_TIMEOUT)
        signals = {str(name): count for name, count in answer.items()} if isinstance(answer, dict) else {}
        return self._page(request, "unread", signals=signals)

    def history(self, request: Request) -> Response:
        """Show a page of the events as a table."""
        workflow_id, run_id = requests.run_of(request)
        handle = self._site.client.get_workflow_handle(workflow_id, run_id=run_id)
        newest_first = request.query_params.get("order") == "newest"
        page = handle.history_page(
            page_size=_EVENTS_A_PAGE,
            page_token=bytes.fromhex(request.query_params.get("page", "")),
            newest_first=newest_first,
        )
        peek = self._site.peek(True) if self._shows_payloads(request) else None
        table = run_view.HistoryTable(
            workflow_id=workflow_id,
            run_id=run_id,
            rows=tuple(run_view.event_row(history_event, peek) for history_event in page.events),
            total=handle.describe().history_length,
            newest_first=newest_first,
            next_page=page.next_page_token.hex(),
        )
        return self._page(request, "history", title=f"History of {workflow_id}", table=table)

    def history_json(self, request: Request) -> Response:
        """Send the history as a file that `hourglass replay` can read. Payloads stay encoded."""
        workflow_id, run_id = requests.run_of(request)
        text = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history().to_json(indent=2)
        name = quote(f"{workflow_id}-{run_id}.json", safe="")
        return Response(
            text,
            media_type="application/json",
            headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"},
        )

    def reset_page(self, request: Request) -> Response:
        """Show the effects of a reset to an event, before its confirmation."""
        workflow_id, run_id = requests.run_of(request)
        _, story, events = self._read_run(request, workflow_id, run_id)
        plan = run_view.reset_plan(events, story, requests.number(request, "event") or 0)
        title = f"Reset {workflow_id}"
        return self._page(request, "reset", title=title, id=workflow_id, run_id=run_id, plan=plan)

    def moments(self, request: Request) -> Response:
        """Show a run at one moment of its past."""
        workflow_id, run_id = requests.run_of(request)
        time_travel = self._site.time_travel
        if time_travel is None:
            raise UsageError(
                "no code is loaded: start the web UI with the file of the workflows, for example hourglass ui app.py"
            )
        history = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history()
        walked = time_travel.walk(history, requests.number(request, "at"))
        all_moments, number = walked.moments, walked.number
        at = all_moments[number] if all_moments else None
        previous = all_moments[number - 1] if number else None
        sources = {
            frame_site: run_view.source(*frame_site)
            for fiber in (at.fibers or () if at is not None else ())
            for frame_site in ((frame.file, frame.line) for frame in fiber.frames)
        }
        value_changes = changes(previous, at) if at is not None and previous is not None else ()
        if not self._shows_payloads(request):
            at = at and run_view.hide_moment(at)
            value_changes = tuple(run_view.hide_change(value_change) for value_change in value_changes)
        error = run_view.replay_error(walked, shows=self._shows_payloads(request))
        return self._page(
            request,
            "moments",
            title=f"Time travel: {workflow_id}",
            id=workflow_id,
            run_id=run_id,
            moments=all_moments,
            at=at,
            changed=value_changes,
            sources=sources,
            error=error,
        )

    def operation(self, request: Request) -> Response:
        """Show the progress of a bulk operation."""
        operation = self._operations.find(int(request.path_params["number"]))
        if operation is None:
            return self.failure(request, 404, "unknown operation")
        return self._page(request, "operation", title=operation.title, operation=operation)

    def schedules(self, request: Request) -> Response:
        """Show all schedules."""
        try:
            schedules, error = list(self._site.client.list_schedules()), ""
        except HourglassError as raised:
            schedules, error = [], str(raised)
        return self._page(request, "schedules", title="Schedules", schedules=schedules, error=error)

    def schedule(self, request: Request) -> Response:
        """Show one schedule."""
        handle = self._site.client.get_schedule_handle(requests.path_part(request, "id"))
        notice = request.query_params.get("notice", "")
        description = handle.describe()
        try:
            year = year_of(description.schedule.spec, datetime.now(UTC))
        except (HourglassError, ValueError):  # a server may support specs that we do not
            year = ()
        return self._page(
            request, "schedule", title=description.id, schedule=description, year=year, notice=notice
        )

    def workers(self, request: Request) -> Response:
        """Show the task queues with their pollers and backlogs, and details of the workers in this process."""
        try:
            queues, error = task_queues(self._site.client), ""
        except HourglassError as raised:
            queues, error = [], str(raised)
        local = [worker_facts(worker) for worker in self._site.workers()]
        if not self._shows_payloads(request):
            local = [{**facts, "parked": dict.fromkeys(facts["parked"], HIDDEN)} for facts in local]
        return self._page(request, "workers", title="Workers", queues=queues, local=local, error=error)

    def limits(self, request: Request) -> Response:
        """Show slots with holders and waiting workflows, turns of throttles, and pending calls of debouncers."""
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
            for kind, query, states in (("slots", "slots", slots), ("throttle", "given", throttles)):
                condition = f"WorkflowType = 'hourglass.{kind}' AND ExecutionStatus = 'Running'"
                for run in client.list_workflows(condition, limit=_MAX_LIMITS):
                    answer = client.get_workflow_handle(run.id).query(query, rpc_timeout=_RPC_TIMEOUT)
                    state = answer if isinstance(answer, dict) else {}
                    states.append({"id": run.id, "run_id": run.run_id, **state})
        except HourglassError as raised:
            error = str(raised)
        now = time_ns() // 1000  # the times of turns are in microseconds
        pending = [
            {**throttle, "given": [turn for turn in throttle.get("given", ()) if turn.get("at", 0) > now]}
            for throttle in throttles
        ]
        return self._page(
            request, "limits", title="Limits", slots=slots, throttles=pending, bursts=bursts, error=error
        )

    def health(self, request: Request) -> Response:
        """Report whether the web UI is healthy and reaches its engine."""
        trouble = site.check_health(self._site.client).trouble
        return JSONResponse({"ok": False, "error": trouble}, 503) if trouble else JSONResponse({"ok": True})


def task_queues(client: Client) -> list[TaskQueueDescription]:
    """Return the task queues that have workers or that recent runs use."""
    default_queue = client.describe_task_queue(rpc_timeout=_RPC_TIMEOUT)
    recent_runs = client.list_workflows(limit=_NEWEST)
    names = dict.fromkeys([*default_queue.served, *(run.task_queue for run in recent_runs if run.task_queue)])
    other_names = [name for name in names if name != default_queue.name][:_MAX_QUEUES]
    with ThreadPoolExecutor(len(other_names) + 1, "hourglass-ui-queues") as threads:
        descriptions = threads.map(
            lambda name: client.describe_task_queue(name, rpc_timeout=_RPC_TIMEOUT), other_names
        )
        other_queues = [*descriptions]
    is_used = default_queue.name in names or default_queue.workflow_pollers or default_queue.activity_pollers
    return [default_queue, *other_queues] if is_used or not other_names else other_queues


def worker_facts(worker: Any) -> dict[str, Any]:
    """Return the data of a worker in this process: its tree, recent faults, statistics and health."""
    statistics = worker.statistics()
    return {
        "queues": worker.task_queue,
        "tree": worker.tree.render(),
        "faults": worker.tree.faults()[:_FAULTS_SHOWN],
        "status": worker._report(),
        "slots": (
            ("workflow tasks", statistics.open_activations, statistics.workflow_slots),
            ("activities", statistics.running_activities, statistics.activity_slots),
            ("cached workflows", statistics.cached_workflows, statistics.cache_size),
            ("hung lanes", statistics.stuck_lanes, statistics.lanes),
        ),
        "counted": (
            ("activations", statistics.activations),
            ("failed tasks", statistics.failed_tasks),
            ("cache misses", statistics.cache_misses),
            ("restarts", statistics.restarts),
        ),
        "parked": statistics.parked,
    }
