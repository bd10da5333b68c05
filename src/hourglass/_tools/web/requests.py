"""What a request asks, read from its address and its form; and what every page is answered with.

Must not know: what the pages are made of. The forms of the page, and those who type addresses, may send anything: what is no
number is none, what is not known is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hourglass._tools.web import addresses, forms, pages
from hourglass._tools.web.finding import Search
from hourglass._tools.web.site import Site
from hourglass.errors import UsageError

# --- the address ------------------------------------------------------------------------------------------------------


def path_part(request: Request, name: str) -> str:
    """A part of the path."""
    return addresses.unquoted(request.path_params[name])


def number(request: Request, name: str) -> int | None:
    """A number of the query; None if it is none."""
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def search(request: Request) -> Search:
    """What is looked for in the list."""
    return Search.from_fields(dict(request.query_params), request.query_params.getlist("status"))


def requests_payloads(request: Request) -> bool:
    """Whether the reader wants to see payloads that are hidden."""
    return "payloads" in request.query_params


# --- the form ---------------------------------------------------------------------------------------------------------


async def fields(request: Request) -> dict[str, Any]:
    """The fields of a form; `runs`, `statuses` and `arguments` may stand in it several times."""
    async with request.form(max_files=0, max_fields=200_000) as form:
        fields: dict[str, Any] = {name: form[name] for name in form}
        fields["runs"] = form.getlist("run")
        fields["statuses"] = form.getlist("status")
        fields["arguments"] = form.getlist("argument")
    return fields


def search_in_form(fields: Mapping[str, Any]) -> Search:
    """What the list looked for, as a form repeats it."""
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    return Search.from_fields(texts, [str(status) for status in fields.get("statuses", [])])


def arguments(fields: Mapping[str, Any]) -> list[Any]:
    """The arguments that a form gives. Raises ValueError."""
    texts = [str(argument) for argument in fields.get("arguments", ())]
    return forms.arguments(texts)


def required_name(name: str, kind: str) -> str:
    """The name of a message. Raises `UsageError` where there is none."""
    if not name:
        raise UsageError(f"the {kind} has no name")
    return name


# --- the answer -------------------------------------------------------------------------------------------------------

_TITLES = {400: "Not understood", 403: "Not allowed", 404: "Not found", 503: "Cannot be reached"}


def view(site: Site, request: Request) -> pages.View:
    """What every page shows around its content."""
    return pages.View(
        target=site.target,
        read_only=site.read_only,
        has_code=bool(site.modules),
        hides_payloads=site.hides_payloads,
        payloads_requested=site.hides_payloads and requests_payloads(request),
        trouble=site.health_monitor.health().notice,
    )


def shows_payloads(site: Site, request: Request) -> bool:
    """Whether values may be shown."""
    return not site.hides_payloads or requests_payloads(request)


def failure(site: Site, request: Request, status: int, message: str, back: str = "/workflows") -> Response:
    """What went wrong, as a page; never in an address, since a message may hold what was typed, or a value of a run."""
    title = _TITLES.get(status, "Something went wrong")
    page = pages.failure(view(site, request), title, message, back, reloads=status == 503)
    return HTMLResponse(page, status)
