"""What is done: the handlers of all forms. Each reads the form, asks the client, and answers with a redirect, so that going back
repeats nothing; what went wrong is a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from hourglass._story.watching import HIDDEN
from hourglass._ui import addresses, asked, finding, forms, pages, run_view
from hourglass._ui.bulk import BulkOperations
from hourglass._ui.site import Site
from hourglass.client import ScheduleBackfill
from hourglass.errors import HourglassError, QueryFailedError, UpdateFailedError, UsageError

_MOST_AT_ONCE = 100_000
_OF_WORKFLOW_CODE = (QueryFailedError, UpdateFailedError)
"""Errors whose messages are those of workflow code."""


class PageActions:
    """What the forms of one site do."""

    def __init__(self, site: Site, operations: BulkOperations) -> None:
        self._site = site
        self._operations = operations

    # --- one run ------------------------------------------------------------------------------------------------------

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
            handle = self._site.client.start_workflow(kind, *asked.arguments(fields), **options)
        except (HourglassError, ValueError) as error:
            known = forms.workflows_in(self._site.modules)
            kept = {name: str(value) for name, value in fields.items() if isinstance(value, str)}
            return HTMLResponse(
                pages.start(asked.view(self._site, request), known, kind, str(error), kept), 400
            )
        return RedirectResponse(addresses.workflow(handle.id), 303)

    def act(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to one run."""
        self._check_may_change()
        workflow_id, run_id = asked.part(request, "id"), asked.part(request, "run_id")
        handle = self._site.client.get_workflow_handle(workflow_id, run_id=run_id)
        back = addresses.run(workflow_id, run_id)
        action = request.path_params["action"]
        name = str(fields.get("name", "")).strip()
        try:
            match action:
                case "signal":
                    handle.signal(asked.named(name, action), *asked.arguments(fields))
                    told = f"signal {name} was sent"
                case "query":
                    found = handle.query(asked.named(name, action), *asked.arguments(fields))
                    return self._answered(request, fields, f"query {name}", found, back)
                case "update":
                    found = handle.execute_update(asked.named(name, action), *asked.arguments(fields))
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
            shows = self._shows(request, fields) or not isinstance(error, _OF_WORKFLOW_CODE)
            return asked.failure(self._site, request, 400, run_view.error_text(error, shows=shows), back)
        return RedirectResponse(f"{back}?notice={quote(told)}", 303)

    def _shows(self, request: Request, fields: Mapping[str, Any]) -> bool:
        """Whether values may be shown in the answer to a form."""
        return asked.shows_payloads(self._site, request) or "payloads" in fields

    def _answered(
        self, request: Request, fields: Mapping[str, Any], title: str, value: Any, back: str
    ) -> Response:
        shows = self._shows(request, fields)
        told = json.dumps(value, indent=2, ensure_ascii=False, default=repr) if shows else HIDDEN
        return HTMLResponse(pages.answer(asked.view(self._site, request), title, told, back))

    # --- many ---------------------------------------------------------------------------------------------------------

    def bulk(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to many runs: those that were chosen, or all that the search finds."""
        self._check_may_change()
        client = self._site.client
        action, reason = str(fields.get("action", "")), str(fields.get("reason", ""))
        runs = [addresses.run_at(str(each)) for each in fields.get("runs", [])]
        if fields.get("all"):
            search = finding.Search.from_fields(
                {name: str(value) for name, value in fields.items() if isinstance(value, str)},
                [str(each) for each in fields.get("statuses", [])],
            )
            query = finding.visible_filter(search, datetime.now(UTC))
            runs = [
                (each.id, each.run_id)
                for each in client.list_workflows(query, page_size=1000, limit=_MOST_AT_ONCE)
            ]
        if not runs:
            raise UsageError("no workflow was chosen")
        name, arguments = str(fields.get("name", "")).strip(), asked.arguments(fields)

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
        started = self._operations.start(f"{action} {len(runs)} workflows", runs, act)
        return RedirectResponse(f"/operations/{started.number}", 303)

    def stop_operation(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Do no more of it."""
        number = int(request.path_params["number"])
        self._operations.stop(number)
        return RedirectResponse(f"/operations/{number}", 303)

    # --- schedules ----------------------------------------------------------------------------------------------------

    def act_on_schedule(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to a schedule."""
        self._check_may_change()
        schedule_id = asked.part(request, "id")
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
                    handle.backfill(_backfill(fields))
                case "delete":
                    handle.delete()
                    return RedirectResponse("/schedules", 303)
                case action:
                    raise UsageError(f"there is no action {action!r}")
        except (HourglassError, ValueError) as error:
            return asked.failure(self._site, request, 400, str(error), back)
        return RedirectResponse(f"{back}?notice={quote(request.path_params['action'])}", 303)

    def act_on_schedules(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Something is done to many schedules."""
        self._check_may_change()
        action = str(fields.get("action", ""))
        chosen = [str(each) for each in fields.get("runs", [])]
        if action not in ("pause", "resume", "trigger", "backfill", "delete") or not chosen:
            raise UsageError(
                "choose schedules, and what is to be done: pause, resume, trigger, backfill or delete"
            )
        backfill = _backfill(fields) if action == "backfill" else None

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
                case "backfill" if backfill is not None:
                    handle.backfill(backfill)
                case "delete":
                    handle.delete()

        started = self._operations.start(
            f"{action} {len(chosen)} schedules", [(each, "") for each in chosen], act
        )
        return RedirectResponse(f"/operations/{started.number}", 303)

    # --- who may ------------------------------------------------------------------------------------------------------

    def _check_may_change(self) -> None:
        if self._site.read_only:
            raise PermissionError("this page is read-only")


def _backfill(fields: Mapping[str, Any]) -> ScheduleBackfill:
    """The time that a form gives. Raises ValueError."""
    start, end = (
        datetime.fromisoformat(finding.moment(str(fields.get(each, "")))) for each in ("start", "end")
    )
    return ScheduleBackfill(start_at=start, end_at=end)
