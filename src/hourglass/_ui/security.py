"""Who may ask, and the headers of every answer. An ASGI middleware.

The page shows payloads and ends workflows. On loopback every page of the web that the reader has open could ask it, too: by a
form (cross-site posts), or by a name of its own that it lets point to 127.0.0.1 (DNS rebinding). So:

- `Host` must be a name that the page was served under; any other is refused, whatever is asked.
- A request that changes something must come from the page itself: by its `Origin`, or where a browser sends none by its
  `Sec-Fetch-Site`.
- Beyond loopback each request needs the token: in a header, or in a cookie that the login form sets (`SameSite=Strict`).
- Answers forbid scripts and styles that are not the page's own files, frames, and guesses at types.

Must not know: what is asked. Tokens are compared in constant time, and are in no URL and no log.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "hourglass_token"
LOGIN = "/login"

_SAFE = frozenset({"GET", "HEAD"})
_OPEN = frozenset({LOGIN})
_OPEN_FOLDER = "/static/"

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


class RequestGuard:
    """Refuses what is not allowed to ask. `hosts` are the values of `Host` that are the page's own, in lower case."""

    def __init__(self, app: App, *, hosts: frozenset[str], token: str | None) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask the application, or refuse."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }

        async def guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message.get("headers", ())}
                more = [pair for pair in HEADERS if pair[0] not in given]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        refusal = self.refusal(str(scope["method"]), str(scope["path"]), headers)
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        status, text = refusal
        wants_page = status == 401 and scope["method"] in _SAFE and "text/html" in headers.get("accept", "")
        more = [(b"location", LOGIN.encode())] if wants_page else []
        await guarded(
            {
                "type": "http.response.start",
                "status": 303 if wants_page else status,
                "headers": [(b"content-type", b"text/plain; charset=utf-8"), *more],
            }
        )
        await guarded({"type": "http.response.body", "body": f"{text}\n".encode()})

    def refusal(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        """Why a request is refused, with its status; None if it is not. Pure."""
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return 421, "this page is not served under that name"
        if method not in _SAFE and not _is_own(headers, host):
            return 403, "a request that changes something must come from this page itself"
        if self._token is None or path in _OPEN or path.startswith(_OPEN_FOLDER):
            return None
        if same(self._token, _given(headers)):
            return None
        return 401, f"a token is needed: in the header Authorization (Bearer …), or log in at {LOGIN}"


def _is_own(headers: dict[str, str], host: str) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        return origin.lower().partition("://")[2] == host
    # Browsers that send no Origin send this; programs send neither, and no browser can be made to send nothing.
    return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _given(headers: dict[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def same(one: str, other: str) -> bool:
    """Whether two tokens are equal, in a time that does not tell how much of them is."""
    return hmac.compare_digest(one.encode(), other.encode())
