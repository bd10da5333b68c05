"""Protection of the web UI against unauthorized requests, and the headers of every response. An ASGI
middleware.

The web UI shows payloads and terminates workflows. Every user of the machine can connect to its port, and so can every page
that the reader has open: through a form or a link (cross-site requests), or through a domain name that resolves to 127.0.0.1
(DNS rebinding). Therefore:

- `Host` must be a name of the web UI; every other request is rejected.
- A request that changes something must come from the web UI itself, shown by its `Origin`, or if a browser sends none,
  by its `Sec-Fetch-Site`. The same holds for a request that only reads; a link from another site leads to a page with
  a link to follow.
- Every request needs the token in a header, or the cookie that the login sets, except the login and the static files.
- The size of a body is limited before it is read; without a token, to the size of the login form.
- Responses forbid scripts and styles other than the web UI's own files, frames, and content sniffing.

Must not know: the meaning of requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from hourglass._http.access import Access, AccessDecision
from hourglass._http.names import OwnNames

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGIN = "/login"
LARGEST_LOGIN = 4096
LARGEST_FORM = 32 * 1024 * 1024

ON_ADMITTED = "hourglass_on_admitted"
"""The key in an ASGI scope's state for a function that is called when a request has a valid token or cookie."""

_SAFE = frozenset({"GET", "HEAD"})
_PUBLIC_FOLDER = "/static/"
_OWN_SITES = frozenset({"same-origin", "none"})
"""The values of `Sec-Fetch-Site` for requests from the web UI itself or from the reader. Programs and old browsers do not
send this header.
"""

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # no-referrer would make the Origin of our own forms null
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True)
class Rejection:
    """The response to a request that is not allowed."""

    status: int
    message: str
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "text/plain; charset=utf-8"


class RequestGuard:
    """A middleware that rejects unauthorized requests."""

    def __init__(self, app: App, *, names: OwnNames, access: Access) -> None:
        self._app = app
        self._names = names
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, or reject the request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            # HTTP/2 proxies send one header per cookie.
            headers[key] = f"{headers[key]}; {text}" if key == "cookie" and key in headers else text

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", ())}
                missing = [pair for pair in HEADERS if pair[0] not in present]
                message = {**message, "headers": [*message.get("headers", ()), *missing]}
            await send(message)

        address = str(scope["client"][0]) if scope.get("client") else ""
        rejection = self.rejection(str(scope["method"]), str(scope["path"]), headers, address, _link(scope))
        if rejection is None:
            if not _is_public(str(scope["path"])):
                scope["state"][ON_ADMITTED]()
            await self._app(scope, receive, guarded)
            return
        # The body of a rejected request is not read, so the connection cannot be reused afterwards.
        own_headers = (("content-type", rejection.content_type), ("connection", "close"))
        encoded = [
            (name.encode(), value.encode("latin-1")) for name, value in (*own_headers, *rejection.headers)
        ]
        await guarded({"type": "http.response.start", "status": rejection.status, "headers": encoded})
        await guarded({"type": "http.response.body", "body": f"{rejection.message}\n".encode()})

    def rejection(
        self, method: str, path: str, headers: dict[str, str], address: str, link: str = "/"
    ) -> Rejection | None:
        """Return the rejection of a request, or None if it is allowed. Wrong tokens are counted.

        `path` is the decoded path that is matched with routes. `link` is the same path as sent, for a link in the response.
        """
        if not self._names.is_host(headers.get("host", "")):
            return Rejection(421, "this host name is not allowed: add it with --name")
        is_open = _is_public(path)
        if method not in _SAFE:
            if not self._is_own(headers):
                return Rejection(403, "a request that changes something must come from the web UI itself")
        elif headers.get("sec-fetch-site", "none").lower() not in _OWN_SITES and not is_open:
            return _cross_site(link, headers)
        if not is_open:
            match self._access.check_request(headers, address):
                case AccessDecision.LIMITED:
                    return too_many_guesses()
                case AccessDecision.DENIED:
                    return _not_logged_in(method, headers)
                case AccessDecision.ADMITTED:
                    pass
        return _check_body(headers, LARGEST_LOGIN if is_open else LARGEST_FORM)

    def _is_own(self, headers: dict[str, str]) -> bool:
        origin = headers.get("origin")
        if origin is not None:
            return self._names.is_origin(origin)
        # Browsers that send no Origin send this header. Programs send neither, and no page can make a browser omit both.
        return headers.get("sec-fetch-site", "none").lower() in _OWN_SITES


def _is_public(path: str) -> bool:
    return path == LOGIN or path.startswith(_PUBLIC_FOLDER)


def too_many_guesses() -> Rejection:
    """Return the rejection for an address that has sent too many wrong tokens."""
    return Rejection(429, "too many wrong tokens from your address: wait a minute", (("retry-after", "60"),))


def _not_logged_in(method: str, headers: dict[str, str]) -> Rejection:
    message = f"a token is required: send the header Authorization (Bearer …), or log in at {LOGIN}"
    if method in _SAFE and "text/html" in headers.get("accept", ""):
        return Rejection(303, message, (("location", LOGIN),))
    return Rejection(401, message, (("www-authenticate", "Bearer"),))


def _cross_site(link: str, headers: dict[str, str]) -> Rejection:
    """Reject a request from another site. If the reader followed a link, respond with a page that shows the link."""
    message = "cross-site requests are rejected"
    if headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest", "document") != "document":
        return Rejection(403, message)
    # Only one slash at the beginning, because two would lead to another host.
    link = escape("/" + link.lstrip("/\\"))
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Hourglass</title><link rel="stylesheet" '
        'href="/static/page.css"><main><h1>A link from another site</h1><p>Another site led you here. No action was '
        f'performed.</p><p><a href="{link}">Open {link}</a></p></main></html>'
    )
    return Rejection(403, page, content_type="text/html; charset=utf-8")


def _check_body(headers: dict[str, str], largest: int) -> Rejection | None:
    """Reject a body that is too large, or that does not announce its length."""
    if "transfer-encoding" in headers:
        return Rejection(411, "the Content-Length header is required")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        return Rejection(400, "the Content-Length header must be a number")
    if len(length) > 19 or int(length) > largest:
        return Rejection(413, f"the body is too large: at most {largest} bytes are allowed")
    return None


def _link(scope: Scope) -> str:
    path = bytes(scope.get("raw_path") or b"/").decode("latin-1")
    query = bytes(scope.get("query_string", b"")).decode("latin-1")
    return f"{path}?{query}" if query else path
