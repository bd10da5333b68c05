"""The routes, and what each does with what it is asked: read the form, ask the client, choose the page.

Handlers are plain functions and run on threads, as the client blocks; `live` alone is asynchronous. A page whose data cannot be
had because the server is away is answered as soon as that is known (`_reading`). A form that changed something is answered with
a redirect, so that going back repeats nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hourglass._story.asking import WhyContext
from hourglass._story.spans import Story
from hourglass._story.watching import Watched
from hourglass._ui import addresses, finding, forms, live, pages, pulse, run_view, security
from hourglass._ui.bulk import BulkOperations
from hourglass._ui.calendar import year_of
from hourglass._ui.finding import Search
from hourglass._ui.pages import View
from hourglass._ui.site import Site
from hourglass._ui.waterfall import waterfall
from hourglass.client import ScheduleBackfill, WorkflowExecution
from hourglass.errors import (
    HourglassError,
    QueryFailedError,
    ScheduleNotFoundError,
    ServiceError,
    UsageError,
    WorkflowNotFoundError,
)
from hourglass.replay import changes

_EVENTS_A_PAGE = 200
_RUNS_OF_AN_ID = 30
_SLOW_AT_ONCE = 8
_TITLES = {400: "Not understood", 403: "Not allowed", 404: "Not found", 503: "Cannot be reached"}
_MOST_KEEPERS = 50
_MOST_AT_ONCE = 100_000


class PageHandlers:
    """The pages of one site."""

    def __init__(self, site: Site, token: str | None = None) -> None:
        self._site = site
        self._token = token
        self.operations = BulkOperations()
        # What asks the code of workflows or replays them may take seconds: it must not take all threads.
        self._slow = anyio.CapacityLimiter(_SLOW_AT_ONCE)

    def _view(self, request: Request) -> View:
        return View(
            target=self._site.target,
            read_only=self._site.read_only,
            has_code=bool(self._site.modules),
            hides_payloads=self._site.hides_payloads,
            payloads_asked=self._site.hides_payloads and _asks_for_payloads(request),
            trouble=self._site.pulse.health().notice,
        )

    def _reading(
        self, handle: Callable[[Request], Response], *, slow: bool = False
    ) -> Callable[[Request], Any]:
        """A handler of a page: done on a thread, and left alone when the server turns out to be away."""

        async def asked(request: Request) -> Response:
            limiter = self._slow if slow else None
            try:
                return await self._unless_away(lambda: handle(request), limiter)
            except _AwayError as away:
                return self._failure(request, 503, str(away))

        return asked

    def _doing(self, handle: Callable[[Request, Mapping[str, Any]], Response]) -> Callable[[Request], Any]:
        """A handler of a form: the form is read on the loop, the rest is done on a thread, to its end: it may take effect."""

        async def posted(request: Request) -> Response:
            if away := self._site.pulse.health().away:
                return self._failure(request, 503, f"nothing was done: {away}")
            return await anyio.to_thread.run_sync(handle, request, await _fields(request))

        return posted

    async def _unless_away(self, work: Callable[[], T], limiter: anyio.CapacityLimiter | None = None) -> T:
        health = self._site.pulse.health
        if away := health().away:
            raise _AwayError(away)
        task = asyncio.ensure_future(anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter))
        try:
            while not (await asyncio.wait({task}, timeout=_LOOK_AGAIN))[0]:
                if away := health().away:
                    raise _AwayError(away)
            return task.result()
        finally:
            task.cancel()

    # --- workflows ----------------------------------------------------------------------------------------------------

    def home(self, request: Request) -> Response:
        """The list is what readers come for."""
        return RedirectResponse("/workflows", 303)

    def workflows(self, request: Request) -> Response:
        """The list, filtered."""
        search = _search(request)
        try:
            found, error = finding.listing(self._site.client, search), ""
        except (ValueError, HourglassError) as raised:
            found, error = None, str(raised)
        known = tuple(forms.workflows_in(self._site.modules))
        return HTMLResponse(pages.workflows(self._view(request), search, found, error, known))

    def chart(self, request: Request) -> Response:
        """Starts, ends and failures over time."""
        try:
            found = finding.chart(self._site.client, _search(request))
        except (ValueError, HourglassError):
            found = ()
        return HTMLResponse(pages.chart(self._view(request), found))

    def latest(self, request: Request) -> Response:
        """From a workflow's id to its latest run."""
        workflow_id = _part(request, "id")
        description = self._site.client.get_workflow_handle(workflow_id).describe()
        asked = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(addresses.run(workflow_id, description.run_id) + asked, 303)

    # --- one run ------------------------------------------------------------------------------------------------------

    def run(self, request: Request) -> Response:
        """One run."""
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        description, story = self._told(request, workflow_id, run_id)
        drawn = waterfall(story, start=_number(request, "from"), end=_number(request, "to"))
        wanted = request.query_params.get("span", "")
        span = next((row.span for row in drawn.rows if row.key == wanted), None)
        messages = {
            action: forms.messages_of(self._site.modules, description.workflow_type, kind)
            for action, kind in (("signal", "signals"), ("query", "queries"), ("update", "updates"))
        }
        chosen = {action: request.query_params.get(action, "") for action in messages}
        return HTMLResponse(
            pages.run(
                self._view(request),
                description,
                story,
                drawn,
                span,
                run_view.chain(story),
                self._runs_of(workflow_id),
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

    def _told(self, request: Request, workflow_id: str, run_id: str) -> tuple[Any, Story]:
        peek = self._site.peek(_asks_for_payloads(request))
        watched = Watched(self._site.client, workflow_id, run_id, peek)
        description, events = watched.look()
        return description, watched.tell(description, events)

    def why(self, request: Request) -> Response:
        """Why it stands as it does; a part of the page, which may take seconds."""
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        try:
            found, error = WhyContext(self._site.client).diagnosis(workflow_id, run_id), ""
        except HourglassError as raised:
            found, error = None, str(raised)
        return HTMLResponse(pages.why(self._view(request), found, error))

    def history(self, request: Request) -> Response:
        """The events as a table."""
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        events = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history().events
        first = _number(request, "first") or 0
        peek = self._site.peek(True) if self._shows(request) else None
        shown = [run_view.event_row(each, peek) for each in events[first : first + _EVENTS_A_PAGE]]
        return HTMLResponse(
            pages.history(self._view(request), workflow_id, run_id, shown, first, len(events))
        )

    def _shows(self, request: Request) -> bool:
        """Whether values may be shown."""
        return not self._site.hides_payloads or _asks_for_payloads(request)

    def history_json(self, request: Request) -> Response:
        """The history as a file: what `hourglass replay` reads. Payloads are in it as they travel."""
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        text = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history().to_json(indent=2)
        name = quote(f"{workflow_id}-{run_id}.json", safe="")
        return Response(
            text,
            media_type="application/json",
            headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"},
        )

    # --- back in time -------------------------------------------------------------------------------------------------

    def moments(self, request: Request) -> Response:
        """A run at one moment of its past."""
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        walks = self._site.walks
        if walks is None:
            raise UsageError(
                "no code is loaded: start the page with the file of the workflows, hourglass ui app.py"
            )
        history = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history()
        known, result = walks.outline(history)
        asked = _number(request, "at")
        number = len(known) - 1 if asked is None else min(asked, len(known) - 1)
        at, before = walks.moment(history, number) if known else (None, None)
        sources = {
            frame_site: run_view.source(*frame_site)
            for fiber in (at.fibers or () if at is not None else ())
            for frame_site in ((frame.file, frame.line) for frame in fiber.frames)
        }
        changed = changes(before, at) if at is not None and before is not None else ()
        if not self._shows(request):
            at = at and run_view.hide_moment(at)
            changed = tuple(run_view.hide_change(each) for each in changed)
        error = "" if result.error is None else str(result.error)
        return HTMLResponse(
            pages.moments(self._view(request), workflow_id, run_id, known, at, changed, sources, error)
        )

    # --- doing something ----------------------------------------------------------------------------------------------

    def act(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to one run."""
        self._check_may_change()
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        handle = self._site.client.get_workflow_handle(workflow_id, run_id=run_id)
        back = addresses.run(workflow_id, run_id)
        action = request.path_params["action"]
        name = str(fields.get("name", "")).strip()
        try:
            match action:
                case "signal":
                    handle.signal(_named(name, action), *_arguments(fields))
                    told = f"signal {name} was sent"
                case "query":
                    found = handle.query(_named(name, action), *_arguments(fields))
                    return self._answered(request, fields, f"query {name}", found, back)
                case "update":
                    found = handle.execute_update(_named(name, action), *_arguments(fields))
                    return self._answered(request, fields, f"update {name}", found, back)
                case "cancel":
                    handle.cancel(str(fields.get("reason", "")))
                    told = "it was asked to cancel"
                case "terminate":
                    handle.terminate(str(fields.get("reason", "")))
                    told = "it was terminated"
                case "reset":
                    fresh = handle.reset(
                        event_id=int(str(fields.get("event_id", ""))),
                        reason=str(fields.get("reason", "")),
                        reapply_signals="without_signals" not in fields,
                        reapply_updates="without_updates" not in fields,
                    )
                    return RedirectResponse(addresses.run(workflow_id, fresh.run_id or run_id), 303)
                case _:
                    raise UsageError(f"there is no action {action!r}")
        except (HourglassError, QueryFailedError, ValueError) as error:
            return self._failure(request, 400, str(error), back)
        return RedirectResponse(f"{back}?notice={quote(told)}", 303)

    def _answered(
        self, request: Request, fields: Mapping[str, Any], title: str, value: Any, back: str
    ) -> Response:
        shows = self._shows(request) or "payloads" in fields
        told = json.dumps(value, indent=2, ensure_ascii=False, default=repr) if shows else run_view.HIDDEN
        return HTMLResponse(pages.answer(self._view(request), title, told, back))

    def reset_page(self, request: Request) -> Response:
        """What a reset to a point would do, before it is done."""
        workflow_id, run_id = _part(request, "id"), _part(request, "run_id")
        events = self._site.client.get_workflow_handle(workflow_id, run_id=run_id).history().events
        _, story = self._told(request, workflow_id, run_id)
        plan = run_view.reset_plan(events, story, _number(request, "event") or 0)
        return HTMLResponse(pages.confirm_reset(self._view(request), workflow_id, run_id, plan))

    def start_page(self, request: Request) -> Response:
        """The form to start a workflow."""
        known = forms.workflows_in(self._site.modules)
        return HTMLResponse(pages.start(self._view(request), known, request.query_params.get("type", "")))

    def start(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Start a workflow."""
        self._check_may_change()
        kind, given = str(fields.get("type", "")).strip(), str(fields.get("id", "")).strip()
        try:
            if not kind:
                raise UsageError("say which workflow: its type is missing")
            options: dict[str, Any] = {"id": given} if given else {}
            queue = str(fields.get("queue", "")).strip()
            if queue:
                options["task_queue"] = queue
            handle = self._site.client.start_workflow(kind, *_arguments(fields), **options)
        except (HourglassError, ValueError) as error:
            known = forms.workflows_in(self._site.modules)
            kept = {name: str(value) for name, value in fields.items() if isinstance(value, str)}
            return HTMLResponse(pages.start(self._view(request), known, kind, str(error), kept), 400)
        return RedirectResponse(addresses.workflow(handle.id), 303)

    def bulk(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to many runs: those that were chosen, or all that the search finds."""
        self._check_may_change()
        client = self._site.client
        action, reason = str(fields.get("action", "")), str(fields.get("reason", ""))
        runs = [addresses.run_at(str(each)) for each in fields.get("runs", [])]
        if fields.get("all"):
            search = Search.from_fields(
                {name: str(value) for name, value in fields.items() if isinstance(value, str)},
                [str(each) for each in fields.get("statuses", [])],
            )
            query = finding.filter_of(search, datetime.now(UTC))
            runs = [
                (each.id, each.run_id)
                for each in client.list_workflows(query, page_size=1000, limit=_MOST_AT_ONCE)
            ]
        if not runs:
            raise UsageError("no workflow was chosen")
        name, arguments = str(fields.get("name", "")).strip(), _arguments(fields)

        def act(workflow_id: str, run_id: str) -> None:
            handle = client.get_workflow_handle(workflow_id, run_id=run_id)
            match action:
                case "cancel":
                    handle.cancel(reason)
                case "terminate":
                    handle.terminate(reason)
                case "signal":
                    handle.signal(name, *arguments)
                case _:
                    handle.reset(reason=reason)

        if action not in ("cancel", "terminate", "signal", "reset") or (action == "signal" and not name):
            raise UsageError("say what is to be done: signal (with its name), cancel, terminate or reset")
        started = self.operations.start(f"{action} {len(runs)} workflows", runs, act)
        return RedirectResponse(f"/operations/{started.number}", 303)

    def operation(self, request: Request) -> Response:
        """How far it has come."""
        found = self.operations.find(int(request.path_params["number"]))
        if found is None:
            return self._failure(request, 404, "no such operation")
        return HTMLResponse(pages.operation(self._view(request), found))

    def stop_operation(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Do no more of it."""
        number = int(request.path_params["number"])
        self.operations.stop(number)
        return RedirectResponse(f"/operations/{number}", 303)

    def _check_may_change(self) -> None:
        if self._site.read_only:
            raise PermissionError("this page is read-only")

    # --- schedules, workers -------------------------------------------------------------------------------------------

    def schedules(self, request: Request) -> Response:
        """All schedules."""
        try:
            found, error = list(self._site.client.list_schedules()), ""
        except HourglassError as raised:
            found, error = [], str(raised)
        return HTMLResponse(pages.schedules(self._view(request), found, error))

    def schedule(self, request: Request) -> Response:
        """One schedule."""
        handle = self._site.client.get_schedule_handle(_part(request, "id"))
        notice = request.query_params.get("notice", "")
        found = handle.describe()
        try:
            year = year_of(found.schedule.spec, datetime.now(UTC))
        except (HourglassError, ValueError):  # a server may know kinds of specs that we do not
            year = ()
        return HTMLResponse(pages.schedule(self._view(request), found, year, notice))

    def act_on_schedule(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to a schedule."""
        self._check_may_change()
        schedule_id = _part(request, "id")
        handle = self._site.client.get_schedule_handle(schedule_id)
        back = addresses.schedule(schedule_id)
        note = str(fields.get("note", ""))
        try:
            match request.path_params["action"]:
                case "pause":
                    handle.pause(note)
                case "resume":
                    handle.unpause(note)
                case "trigger":
                    handle.trigger()
                case "backfill":
                    start, end = (
                        datetime.fromisoformat(finding.moment(str(fields.get(each, ""))))
                        for each in ("start", "end")
                    )
                    handle.backfill(ScheduleBackfill(start_at=start, end_at=end))
                case "delete":
                    handle.delete()
                    return RedirectResponse("/schedules", 303)
                case action:
                    raise UsageError(f"there is no action {action!r}")
        except (HourglassError, ValueError) as error:
            return self._failure(request, 400, str(error), back)
        return RedirectResponse(f"{back}?notice={quote(request.path_params['action'])}", 303)

    def act_on_schedules(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to many schedules."""
        self._check_may_change()
        action = str(fields.get("action", ""))
        chosen = [str(each) for each in fields.get("runs", [])]
        if action not in ("pause", "resume", "trigger", "delete") or not chosen:
            raise UsageError("choose schedules, and what is to be done: pause, resume, trigger or delete")

        def act(schedule_id: str, _: str) -> None:
            handle = self._site.client.get_schedule_handle(
                addresses.unquoted(addresses.unquoted(schedule_id))
            )
            match action:
                case "pause":
                    handle.pause()
                case "resume":
                    handle.unpause()
                case "trigger":
                    handle.trigger()
                case _:
                    handle.delete()

        started = self.operations.start(
            f"{action} {len(chosen)} schedules", [(each, "") for each in chosen], act
        )
        return RedirectResponse(f"/operations/{started.number}", 303)

    def workers(self, request: Request) -> Response:
        """Task queues and who serves them."""
        client = self._site.client
        try:
            newest = client.list_workflows(limit=200)
            names = dict.fromkeys(["default", *(each.task_queue for each in newest if each.task_queue)])
            queues, error = (
                [client.describe_task_queue(name, rpc_timeout=3.0) for name in list(names)[:20]],
                "",
            )
        except HourglassError as raised:
            queues, error = [], str(raised)
        local = [_worker(each) for each in self._site.workers()]
        return HTMLResponse(pages.workers(self._view(request), queues, local, error))

    def limits(self, request: Request) -> Response:
        """Slots: which workflows hold them, which wait."""
        client = self._site.client
        found: list[dict[str, Any]] = []
        error = ""
        try:
            open_keepers = "WorkflowType = 'hourglass.slots' AND ExecutionStatus = 'Running'"
            for each in client.list_workflows(open_keepers, limit=_MOST_KEEPERS):
                answer = client.get_workflow_handle(each.id).query("slots", rpc_timeout=3.0)
                found.append(
                    {"id": each.id, "run_id": each.run_id, **(answer if isinstance(answer, dict) else {})}
                )
        except HourglassError as raised:
            error = str(raised)
        return HTMLResponse(pages.limits(self._view(request), found, error))

    # --- live ---------------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """Events for an open page: what it shows has changed."""
        params = request.query_params
        client = self._site.client

        async def mark() -> tuple[str, str]:
            found = await self._unless_away(look)
            return found, self._site.pulse.health().notice

        def look() -> str:
            if "state" in params:
                return ""
            if "run" in params:
                found = client.get_workflow_handle(params.get("id", ""), run_id=params["run"]).describe()
                pending = [(each.id, each.attempt, each.state) for each in found.pending_activities]
                return f"{found.history_length} {found.status} {found.task_attempt} {pending}"
            if "operation" in params:
                operation = self.operations.find(int(params["operation"]))
                return "" if operation is None else f"{operation.done} {operation.failed} {operation.ended}"
            search = _search(request)
            now = datetime.now(UTC)
            page = client.list_page(finding.filter_of(search, now), page_size=finding.PAGE_SIZE)
            return (
                f"{[(each.run_id, each.status) for each in page.items]} {finding.counts(client, search, now)}"
            )

        async def events() -> AsyncIterator[bytes]:
            async for event in live.changes(mark, request.is_disconnected):
                yield event

        return StreamingResponse(events(), media_type="text/event-stream")

    # --- the rest -----------------------------------------------------------------------------------------------------

    def login_page(self, request: Request) -> Response:
        """The form that asks for the token."""
        return HTMLResponse(pages.login(self._view(request)))

    def login(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Check the token, and keep it in a cookie."""
        given = str(fields.get("token", ""))
        if self._token is None or not security.same(self._token, given):
            return HTMLResponse(pages.login(self._view(request), "this is not the token"), 401)
        answer = RedirectResponse("/workflows", 303)
        answer.set_cookie(security.COOKIE, given, httponly=True, samesite="strict", path="/")
        return answer

    def health(self, request: Request) -> Response:
        """Whether the page answers, and whether what it shows does."""
        trouble = pulse.look(self._site.client).trouble
        return JSONResponse({"ok": False, "error": trouble}, 503) if trouble else JSONResponse({"ok": True})

    def _failure(self, request: Request, status: int, message: str, back: str = "/workflows") -> Response:
        """What went wrong, as a page; never in an address, since a message may hold what was typed, or a value of a run."""
        view = self._view(request)
        title = _TITLES.get(status, "Something went wrong")
        return HTMLResponse(pages.failure(view, title, message, back, comes_back=status == 503), status)

    async def failed(self, request: Request, error: Exception) -> Response:
        """What went wrong, as a page."""
        match error:
            case WorkflowNotFoundError() | ScheduleNotFoundError():
                status = 404
            case ServiceError(status="INVALID_ARGUMENT"):
                status = 400
            case PermissionError():
                status = 403
            case UsageError() | ValueError():
                status = 400
            case HourglassError():
                status = 503
            case _:
                status = 500
        return self._failure(request, status, str(error) or type(error).__name__)

    def app(self) -> Starlette:
        """All routes."""
        run = "/workflows/{id}/{run_id}"
        routes = [
            Route("/", self.home),
            Route("/workflows", self._reading(self.workflows)),
            Route("/workflows/chart", self._reading(self.chart)),
            Route("/start", self.start_page),
            Route("/start", self._doing(self.start), methods=["POST"]),
            Route("/bulk", self._doing(self.bulk), methods=["POST"]),
            Route("/operations/{number:int}", self.operation),
            Route("/operations/{number:int}/stop", self._doing(self.stop_operation), methods=["POST"]),
            Route("/schedules", self._reading(self.schedules)),
            Route("/schedules", self._doing(self.act_on_schedules), methods=["POST"]),
            Route("/schedules/{id}", self._reading(self.schedule)),
            Route("/schedules/{id}/{action}", self._doing(self.act_on_schedule), methods=["POST"]),
            Route("/workers", self._reading(self.workers)),
            Route("/limits", self._reading(self.limits, slow=True)),
            Route("/live", self.live),
            Route("/health", self.health),
            Route(security.LOGIN, self.login_page),
            Route(security.LOGIN, self._doing(self.login), methods=["POST"]),
            Mount("/static", StaticFiles(directory=str(files("hourglass._ui") / "static"))),
            Route("/workflows/{id}", self._reading(self.latest)),
            Route(f"{run}/why", self._reading(self.why, slow=True)),
            Route(f"{run}/history", self._reading(self.history)),
            Route(f"{run}/history.json", self._reading(self.history_json)),
            Route(f"{run}/moments", self._reading(self.moments, slow=True)),
            Route(f"{run}/reset", self._reading(self.reset_page)),
            Route(f"{run}/{{action}}", self._doing(self.act), methods=["POST"]),
            Route(run, self._reading(self.run)),
        ]
        handlers: Any = {
            Exception: self.failed,
            HourglassError: self.failed,
            ValueError: self.failed,
            PermissionError: self.failed,
        }
        return Starlette(routes=routes, exception_handlers=handlers)


T = TypeVar("T")

_LOOK_AGAIN = 0.2


class _AwayError(ServiceError):
    """What the page shows cannot be asked for now."""


def build(site: Site, *, hosts: frozenset[str], token: str | None = None) -> security.RequestGuard:
    """The application of a site, guarded."""
    return security.RequestGuard(PageHandlers(site, token).app(), hosts=hosts, token=token)


# --- reading what was asked -------------------------------------------------------------------------------------------


async def _fields(request: Request) -> dict[str, Any]:
    """The fields of a form; `runs`, `statuses` and `arguments` may stand in it several times."""
    async with request.form(max_files=0, max_fields=200_000) as form:
        fields: dict[str, Any] = {name: form[name] for name in form}
        fields["runs"] = form.getlist("run")
        fields["statuses"] = form.getlist("status")
        fields["arguments"] = form.getlist("argument")
    return fields


def _asks_for_payloads(request: Request) -> bool:
    return "payloads" in request.query_params


def _started(run: WorkflowExecution) -> float:
    return 0.0 if run.start_time is None else run.start_time.timestamp()


def _search(request: Request) -> Search:
    return Search.from_fields(dict(request.query_params), request.query_params.getlist("status"))


def _part(request: Request, name: str) -> str:
    return addresses.unquoted(request.path_params[name])


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _arguments(fields: Mapping[str, Any]) -> list[Any]:
    listed = [str(each) for each in fields.get("arguments", ())]
    return forms.arguments(listed)


def _named(name: str, what: str) -> str:
    if not name:
        raise UsageError(f"the {what} has no name")
    return name


def _worker(worker: Any) -> dict[str, Any]:
    """A worker of this process: its tree, and what it says of its health."""
    counted = asdict(worker.statistics())
    parked = counted.pop("parked")
    del counted["task_queue"], counted["state"]
    return {
        "queues": worker.task_queue,
        "tree": worker.tree.render(),
        "status": worker._report(),
        "counted": {name.replace("_", " "): value for name, value in counted.items()},
        "parked": parked,
    }
