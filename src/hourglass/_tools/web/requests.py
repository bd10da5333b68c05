"""The parameters of a request, from its URL and its form, and the parts that all responses share.

Must not know: the content of pages. Forms may send any values, and so may readers who enter URLs. A malformed number is
treated as absent, and unknown values are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hourglass._tools.web import addresses, forms, pages
from hourglass._tools.web.bulk import BulkOperations
from hourglass._tools.web.finding import Search
from hourglass._tools.web.site import Site
from hourglass.errors import UsageError


def path_part(request: Request, name: str) -> str:
    """Return an unquoted part of the path."""
    return addresses.unquoted(request.path_params[name])


def number(request: Request, name: str) -> int | None:
    """Return a number from the query, or None if it is absent or malformed."""
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def search(request: Request) -> Search:
    """Return the search described by the URL."""
    return Search.from_fields(dict(request.query_params), request.query_params.getlist("status"))


def requests_payloads(request: Request) -> bool:
    """Whether the reader wants to see hidden payloads."""
    return "payloads" in request.query_params


async def fields(request: Request) -> dict[str, Any]:
    """Return the fields of a form. `runs`, `statuses` and `arguments` are lists: they may occur several times."""
    async with request.form(max_files=0, max_fields=200_000) as form:
        fields: dict[str, Any] = {name: form[name] for name in form}
        fields["runs"] = form.getlist("run")
        fields["statuses"] = form.getlist("status")
        fields["arguments"] = form.getlist("argument")
    return fields


def search_in_form(fields: Mapping[str, Any]) -> Search:
    """Return the search of the list from a form that repeats it."""
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    return Search.from_fields(texts, [str(status) for status in fields.get("statuses", [])])


def arguments(fields: Mapping[str, Any]) -> list[Any]:
    """Return the arguments entered in a form. Raise `ValueError` if one is malformed."""
    texts = [str(argument) for argument in fields.get("arguments", ())]
    return forms.arguments(texts)


def required_name(name: str, kind: str) -> str:
    """Return the name of a message. Raise `UsageError` if it is empty."""
    if not name:
        raise UsageError(f"the name of the {kind} is missing")
    return name


def run_of(request: Request) -> tuple[str, str]:
    """Return the workflow id and the run id in the path."""
    return path_part(request, "id"), path_part(request, "run_id")


_TITLES = {400: "Invalid request", 403: "Forbidden", 404: "Not found", 503: "Unavailable"}


class Handlers:
    """The handlers of one site, and the parts that all their responses share."""

    def __init__(self, site: Site, operations: BulkOperations) -> None:
        self._site = site
        self._operations = operations

    def _page(self, request: Request, template: str, status: int = 200, **data: Any) -> Response:
        site = self._site
        view = pages.View(
            target=site.target,
            read_only=site.read_only,
            has_code=bool(site.modules),
            hides_payloads=site.hides_payloads,
            payloads_requested=site.hides_payloads and requests_payloads(request),
            trouble=site.health_monitor.health().notice,
        )
        return HTMLResponse(pages.render(template, view, **data), status)

    def _shows_payloads(self, request: Request) -> bool:
        return not self._site.hides_payloads or requests_payloads(request)

    def failure(self, request: Request, status: int, message: str, back: str = "/workflows") -> Response:
        """Render an error page. The message never becomes part of a URL, because it may contain input or a value of a run.

        The page of an unavailable engine reloads itself when its content becomes available.
        """
        title = _TITLES.get(status, "Internal error")
        reloads = status == 503
        return self._page(
            request, "failure", status, title=title, message=message, back=back, reloads=reloads
        )

    def start_form(
        self,
        request: Request,
        selected: str,
        status: int = 200,
        error: str = "",
        entered: Mapping[str, str] | None = None,
    ) -> Response:
        """Render the form to start a workflow."""
        return self._page(
            request,
            "start",
            status,
            title="Start a workflow",
            forms=forms.workflows_in(self._site.modules),
            chosen=selected,
            error=error,
            given=entered or {},
        )
