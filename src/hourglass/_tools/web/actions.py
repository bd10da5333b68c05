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

from hourglass._tools.timeline.watching import HIDDEN
from hourglass._tools.web import addresses, asked, finding, forms, pages, run_view
from hourglass._tools.web.bulk import BulkOperations, ConfirmedScope
from hourglass._tools.web.site import Site
from hourglass.client import ScheduleBackfill
from hourglass.client._bulk import open_ones
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
        """Something is done to many runs: those that were chosen, or all that the search finds. The reader is asked first."""
        self._check_may_change()
        client = self._site.client
        action, reason = str(fields.get("action", "")), str(fields.get("reason", ""))
        name, arguments = str(fields.get("name", "")).strip(), asked.arguments(fields)
        if action not in _BULK_ACTIONS or (action == "signal" and not name):
            raise UsageError("say what is to be done: signal (with its name), cancel, terminate or reset")
        runs = [addresses.run_at(str(each)) for each in fields.get("runs", [])]
        scope = ConfirmedScope(len(runs), runs)
        if fields.get("all"):
            # Runs that begin after the question are not part of its answer.
            fields = {"asked": finding.written(datetime.now(UTC)), **fields}
            scope = self._found(fields, action)
        if not scope.count:
            raise UsageError(
                "no open workflow is found"
                if scope.is_all and action != "reset"
                else "no workflow was chosen"
            )
        is_answer = "confirmed" in fields
        refusal = (
            scope.refusal(str(fields.get("expected", "")), str(fields.get("typed", ""))) if is_answer else ""
        )
        if not is_answer or refusal:
            view = asked.view(self._site, request)
            shown = pages.confirm(view, action, scope, _repeated(fields), refusal)
            return HTMLResponse(shown, 400 if refusal else 200)
        if scope.is_all:
            found = client.list_workflows(scope.query, page_size=1000, limit=_MOST_AT_ONCE)
            runs = [(each.id, each.run_id) for each in found]

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

        started = self._operations.start(f"{action} {len(runs)} workflows", runs, act)
        return RedirectResponse(f"/operations/{started.number}", 303)

    def _found(self, fields: Mapping[str, Any], action: str) -> ConfirmedScope:
        """All runs that the search of a form finds; only open ones, where a closed one can take no part."""
        search, now = asked.searched(fields), datetime.now(UTC)
        query = finding.visible_filter(self._site.client, search, now)
        query = f"({query}) AND StartTime <= {finding.text(finding.moment(str(fields['asked'])))}"
        if action != "reset":
            query = open_ones(query)
        shown = " AND ".join(each for each in (finding.filter_of(search, now), search.problem) if each)
        return ConfirmedScope(
            int(self._site.client.count_workflows(query)), query=query, shown=shown, is_all=True
        )

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


_BULK_ACTIONS = ("cancel", "terminate", "signal", "reset")
_NOT_REPEATED = (
    "confirmed",
    "expected",
    "typed",
    "run",
    "runs",
    "status",
    "statuses",
    "argument",
    "arguments",
)


def _repeated(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The fields of a form, for the form that asks whether it is meant."""
    single = [(name, str(value)) for name, value in fields.items() if name not in _NOT_REPEATED]
    several = (("run", "runs"), ("status", "statuses"), ("argument", "arguments"))
    return single + [(name, str(value)) for name, names in several for value in fields.get(names, ())]


def _backfill(fields: Mapping[str, Any]) -> ScheduleBackfill:
    """The time that a form gives. Raises ValueError."""
    start, end = (
        datetime.fromisoformat(finding.moment(str(fields.get(each, "")))) for each in ("start", "end")
    )
    return ScheduleBackfill(start_at=start, end_at=end)
