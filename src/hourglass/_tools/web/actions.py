"""The handlers of all forms. Each handler reads the form, calls the client, and responds with a redirect, so that the
browser's back button does not repeat the action. Errors are rendered as a page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hourglass._tools.diagnosis.problems import literal
from hourglass._tools.timeline.watching import HIDDEN
from hourglass._tools.web import addresses, finding, requests, run_view
from hourglass._tools.web.bulk import ConfirmedScope
from hourglass.client import ScheduleBackfill, ScheduleHandle
from hourglass.client._bulk import open_only
from hourglass.errors import HourglassError, QueryFailedError, UpdateFailedError, UsageError

UPDATE_TIMEOUT = 10.0
"""The maximum time in seconds to wait for the result of an update. A waiting form occupies a thread that pages need."""

_MAX_BULK_RUNS = 100_000
_WORKFLOW_ERRORS = (QueryFailedError, UpdateFailedError)
"""Errors whose messages come from workflow code."""


class PageActions(requests.Handlers):
    """The form handlers of one site."""

    def start(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Start a workflow."""
        kind, workflow_id = str(fields.get("type", "")).strip(), str(fields.get("id", "")).strip()
        try:
            if not kind:
                raise UsageError("the workflow type is missing")
            options: dict[str, Any] = {"id": workflow_id} if workflow_id else {}
            queue = str(fields.get("queue", "")).strip()
            if queue:
                options["task_queue"] = queue
            handle = self._site.client.start_workflow(kind, *requests.arguments(fields), **options)
        except (HourglassError, ValueError) as error:
            entered = {name: value for name, value in fields.items() if isinstance(value, str)}
            return self.start_form(request, kind, 400, str(error), entered)
        return RedirectResponse(addresses.workflow(handle.id), 303)

    def act(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Signal, query, update, cancel, terminate or reset one run."""
        workflow_id, run_id = requests.run_of(request)
        handle = self._site.client.get_workflow_handle(workflow_id, run_id=run_id)
        back = addresses.run(workflow_id, run_id)
        action = request.path_params["action"]
        name = str(fields.get("name", "")).strip()
        try:
            match action:
                case "signal":
                    handle.signal(requests.required_name(name, action), *requests.arguments(fields))
                    notice = f"signal {name} was sent"
                case "query":
                    result = handle.query(requests.required_name(name, action), *requests.arguments(fields))
                    return self._answer_page(request, fields, f"query {name}", result, back)
                case "update":
                    result = handle.execute_update(
                        requests.required_name(name, action),
                        *requests.arguments(fields),
                        rpc_timeout=UPDATE_TIMEOUT,
                    )
                    return self._answer_page(request, fields, f"update {name}", result, back)
                case "cancel":
                    handle.cancel(str(fields.get("reason", "")))
                    notice = "cancellation was requested"
                case "terminate":
                    handle.terminate(str(fields.get("reason", "")))
                    notice = "the workflow was terminated"
                case "reset":
                    new_run = handle.reset(
                        event_id=int(str(fields.get("event_id", ""))),
                        reason=str(fields.get("reason", "")),
                        reapply_signals="without_signals" not in fields,
                        reapply_updates="without_updates" not in fields,
                    )
                    return RedirectResponse(addresses.run(workflow_id, new_run.run_id or run_id), 303)
                case _:
                    raise UsageError(f"unknown action {action!r}")
        except (HourglassError, QueryFailedError, ValueError) as error:
            shows = self._shows(request, fields) or not isinstance(error, _WORKFLOW_ERRORS)
            return self.failure(request, 400, run_view.error_text(error, shows=shows), back)
        return RedirectResponse(f"{back}?notice={quote(notice)}", 303)

    def _shows(self, request: Request, fields: Mapping[str, Any]) -> bool:
        return self._shows_payloads(request) or "payloads" in fields

    def _answer_page(
        self, request: Request, fields: Mapping[str, Any], title: str, value: Any, back: str
    ) -> Response:
        shows = self._shows(request, fields)
        text = json.dumps(value, indent=2, ensure_ascii=False, default=repr) if shows else HIDDEN
        return self._page(request, "answer", title=title, value=text, back=back)

    def bulk(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Apply an action to the selected runs, or to all that the search finds, after a confirmation."""
        client = self._site.client
        action, reason = str(fields.get("action", "")), str(fields.get("reason", ""))
        name, arguments = str(fields.get("name", "")).strip(), requests.arguments(fields)
        if action not in _BULK_ACTIONS or (action == "signal" and not name):
            raise UsageError(
                "no action was selected: choose signal (with its name), cancel, terminate or reset"
            )
        runs = [addresses.run_at(str(path)) for path in fields.get("runs", [])]
        scope = ConfirmedScope(len(runs), runs)
        if fields.get("all"):
            # The confirmation does not cover runs that start after the question was displayed.
            fields = {"asked_at": finding.filter_time(datetime.now(UTC)), **fields}
            scope = self._matching_scope(fields, action)
        if not scope.count:
            raise UsageError(
                "no open workflow matches the search"
                if scope.is_all and action != "reset"
                else "no workflow was selected"
            )
        is_confirmed = "confirmed" in fields
        rejection = (
            scope.rejection(str(fields.get("expected", "")), str(fields.get("typed", "")))
            if is_confirmed
            else ""
        )
        if not is_confirmed or rejection:
            verb, consequence = _BULK_ACTIONS[action]
            return self._page(
                request,
                "confirm",
                400 if rejection else 200,
                title=f"{verb}?",
                verb=verb,
                consequence=consequence,
                scope=scope,
                fields=_repeated_fields(fields),
                error=rejection,
            )
        if scope.is_all:
            matching_runs = client.list_workflows(scope.query, page_size=1000, limit=_MAX_BULK_RUNS)
            runs = [(run.id, run.run_id) for run in matching_runs]

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

        operation = self._operations.start(f"{action} {len(runs)} workflows", runs, act)
        return RedirectResponse(f"/operations/{operation.number}", 303)

    def _matching_scope(self, fields: Mapping[str, Any], action: str) -> ConfirmedScope:
        """Return all runs that a form's search finds. If the action cannot apply to closed runs, return only open runs."""
        search, now = requests.search_in_form(fields), datetime.now(UTC)
        query = finding.visible_filter(self._site.client, search, now)
        query = f"({query}) AND StartTime <= {literal(finding.parse_time(str(fields['asked_at'])))}"
        if action != "reset":
            query = open_only(query)
        displayed = " AND ".join(
            condition for condition in (finding.filter_of(search, now), search.problem) if condition
        )
        return ConfirmedScope(
            int(self._site.client.count_workflows(query)), query=query, shown=displayed, is_all=True
        )

    def stop_operation(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Stop a bulk operation before it reaches the remaining runs."""
        number = int(request.path_params["number"])
        self._operations.stop(number)
        return RedirectResponse(f"/operations/{number}", 303)

    def act_on_schedule(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Pause, resume, trigger, backfill or delete one schedule."""
        schedule_id = requests.path_part(request, "id")
        handle = self._site.client.get_schedule_handle(schedule_id)
        back = addresses.schedule(schedule_id)
        action = request.path_params["action"]
        try:
            if action not in _SCHEDULE_ACTIONS:
                raise UsageError(f"unknown action {action!r}")
            _SCHEDULE_ACTIONS[action](handle, fields)
        except (HourglassError, ValueError) as error:
            return self.failure(request, 400, str(error), back)
        return RedirectResponse("/schedules" if action == "delete" else f"{back}?notice={quote(action)}", 303)

    def act_on_schedules(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Apply an action to many schedules."""
        action = str(fields.get("action", ""))
        selected = [str(schedule_id) for schedule_id in fields.get("runs", [])]
        if action not in _SCHEDULE_ACTIONS or not selected:
            raise UsageError("select schedules and an action: pause, resume, trigger, backfill or delete")
        if action == "backfill":
            _backfill(fields)  # raises before the operation starts

        def act(quoted_id: str, _: str) -> None:
            schedule_id = addresses.unquoted(addresses.unquoted(quoted_id))
            _SCHEDULE_ACTIONS[action](self._site.client.get_schedule_handle(schedule_id), fields)

        operation = self._operations.start(
            f"{action} {len(selected)} schedules", [(schedule_id, "") for schedule_id in selected], act
        )
        return RedirectResponse(f"/operations/{operation.number}", 303)


_BULK_ACTIONS = {
    "cancel": (
        "Cancel",
        "Requests cancellation. A workflow's code may clean up first, and may ignore the request.",
    ),
    "terminate": (
        "Terminate",
        "The workflows end immediately. Their code is not notified and cannot clean up.",
    ),
    "reset": ("Reset", "Each workflow starts a new run from its last workflow task."),
    "signal": ("Signal", "Each workflow receives the signal."),
}
"""The actions on many runs: the verb and the consequence in the question that asks for confirmation."""

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


def _repeated_fields(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of a form, to be repeated in the form that asks for confirmation."""
    single = [(name, str(value)) for name, value in fields.items() if name not in _NOT_REPEATED]
    lists = (("run", "runs"), ("status", "statuses"), ("argument", "arguments"))
    return single + [(name, str(value)) for name, names in lists for value in fields.get(names, ())]


def _backfill(fields: Mapping[str, Any]) -> ScheduleBackfill:
    start, end = (
        datetime.fromisoformat(finding.parse_time(str(fields.get(name, "")))) for name in ("start", "end")
    )
    return ScheduleBackfill(start_at=start, end_at=end)


_SCHEDULE_ACTIONS: dict[str, Callable[[ScheduleHandle, Mapping[str, Any]], object]] = {
    "pause": lambda handle, fields: handle.pause(str(fields.get("note", ""))),
    "resume": lambda handle, fields: handle.unpause(str(fields.get("note", ""))),
    "trigger": lambda handle, _: handle.trigger(),
    "backfill": lambda handle, fields: handle.backfill(_backfill(fields)),
    "delete": lambda handle, _: handle.delete(),
}
