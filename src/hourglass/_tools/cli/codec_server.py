"""`hourglass codec-server`: a codec for Temporal's web UI and command line, over HTTP.

The web UI and the command line send payloads to `/decode` or `/encode` at an address that the user has configured, and show
the response. The response is the data that the codec protects. Therefore a token is always required, or the cookie set by a
one-time link. In a browser, only the configured origins can read the response. A `Host` that is not ours is rejected,
because a foreign page could otherwise resolve its own name to our address. Payloads are never logged or included in an error
message.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import parse_qs

import typer

from hourglass._http.access import Access, AccessDecision, Credentials, read_token
from hourglass._http.names import LOOPBACK, OwnNames
from hourglass._http.server import HttpRequest, HttpResponse, HttpServer, error_response, listening_socket
from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import Codec, Host, TokenOption
from hourglass.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from hourglass.converter import Codec as PayloadCodec
    from hourglass.converter import Payload

TOKEN = "HOURGLASS_CODEC_TOKEN"
UI_ORIGINS = ("http://localhost:8233", "http://127.0.0.1:8233", "http://localhost:8080")
"""The default URLs of Temporal's web UI, in a dev server and in its docker images."""
LARGEST = 64 * 1024 * 1024
LOGIN = "/login"
_THREADS = 8
_JSON = "application/json"
_WHAT_IT_IS = (
    "This is a codec server. Set its address in Temporal's UI; it serves POST /decode and POST /encode."
)
_LOGGED_IN = b"You are logged in. Set the address of this server in Temporal's UI, with cross-origin credentials included.\n"
_HEADERS = "Authorization, Content-Type, X-Namespace"


def codec_server(
    codec: Codec = None,
    host: Host = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="The port; 0 for a free one.")
    ] = 8081,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="URL",
            help="The URL of Temporal's UI in the browser; may be repeated.  "
            f"[default: {', '.join(UI_ORIGINS)}]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name", metavar="HOST[:PORT]", help="The server's public name, for example behind a proxy."
        ),
    ] = None,
    token: TokenOption = None,
) -> None:
    """Decode payloads for Temporal's UI.

    Set its address in the UI (the glasses at the top, "Codec Server"), or with `temporal --codec-endpoint`. The UI
    needs the cookie of the link that is printed, the command line the token, as `--codec-auth`.

    \b
    Examples:
      hourglass codec-server --codec app.secrets:codec
      hourglass codec-server --codec app.secrets:codec --origin https://temporal.example.com
    """
    from hourglass._tools.cli.loading import codec_named

    chosen = codec_named(codec)
    if chosen is None:
        raise UsageError(
            "no codec is set: pass for example --codec app.secrets:codec, or set HOURGLASS_CODEC"
        )
    secret = read_token(token, "--token") or read_token(os.environ.get(TOKEN), TOKEN)
    credentials = Credentials.create(secret)
    origins = checked_origins(origin or UI_ORIGINS)
    wait_for_sigterm = connecting.sigterm()
    with served(
        chosen, host=host, port=port, origins=origins, credentials=credentials, names=tuple(name or ())
    ) as address:
        console.show(f"codec server: {address}, for {', '.join(origins)}")
        console.show(f"log in a browser with this link, which works once: {_link(address, credentials)}")
        if credentials.generated:
            console.show(f"token for programs, such as temporal --codec-auth 'Bearer …': {credentials.token}")
        wait_for_sigterm()


def _link(address: str, credentials: Credentials) -> str:
    """Return the one-time link.

    Browsers send the link's cookie to this server only from a page of the same site. Temporal's web UI usually runs on
    `localhost`, which is a different site than 127.0.0.1.
    """
    scheme, _, host = address.partition("://")
    name, _, port = host.rpartition(":")
    local = f"localhost:{port}" if name.strip("[]") in LOOPBACK else host
    return f"{scheme}://{local}{LOGIN}?code={credentials.link.code}"


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Return the origins. Raise `UsageError` for an invalid one.

    `*` is invalid, too, because then any page could read the payloads.
    """
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if scheme not in ("http", "https") or not host or "/" in host or "*" in host:
            raise UsageError(
                f"an origin must be a URL without a path, such as https://temporal.example.com, not {origin!r}"
            )
    return tuple(origins)


@contextmanager
def served(
    codec: PayloadCodec,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    origins: Sequence[str] = UI_ORIGINS,
    credentials: Credentials | None = None,
    names: Sequence[str] = (),
) -> Iterator[str]:
    """Serve the codec during the block, on an event loop in a thread, and yield the server's URL."""
    try:
        listening = listening_socket(host, port)
    except OSError as error:
        raise UsageError(f"the codec server cannot listen on {host}:{port}: {error.strerror}") from None
    number = listening.getsockname()[1]
    secrets = credentials or Credentials.create()
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hourglass-codec")
    answers = CodecAnswers(
        codec, frozenset(origins), OwnNames(host, number, names), Access(secrets, number), threads
    )
    started: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        server, stopping = HttpServer(answers.check, answers.answer), asyncio.Event()
        await server.start(listening)
        started.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set))
        await stopping.wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="hourglass-codec-server", daemon=True)
    thread.start()
    stop = started.result()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{number}"
    finally:
        stop()
        thread.join()
        threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class CodecAnswers:
    """The request handlers of a codec server. The codec is the author's code and runs on threads."""

    codec: PayloadCodec
    origins: frozenset[str]
    names: OwnNames
    access: Access
    threads: ThreadPoolExecutor

    def check(self, request: HttpRequest) -> HttpResponse | int:
        """Check the head of a request. Return a rejection, or the maximum size of the body."""
        headers = request.headers
        if not self.names.is_host(headers.get("host", "")):
            return error_response(421, "the request's host name is not allowed: add the name with --name")
        if request.method == "OPTIONS":  # a browser's preflight request
            return self._with_origin(request, HttpResponse(204 if self._is_allowed(request) else 403))
        if request.method in ("GET", "HEAD"):
            return self._log_in(request) if request.path == LOGIN else error_response(405, _WHAT_IT_IS)
        if not self._is_allowed(request):
            return error_response(403, "this origin is not allowed: add the origin with --origin")
        match self.access.check_request(headers, request.address):
            case AccessDecision.LIMITED:
                return self._with_origin(request, error_response(429, "too many wrong tokens: wait a minute"))
            case AccessDecision.DENIED:
                return self._with_origin(
                    request, error_response(401, "a token is required, as 'Authorization: Bearer …'")
                )
            case AccessDecision.ADMITTED:
                pass
        if request.method != "POST" or _operation(request) not in ("encode", "decode"):
            return self._with_origin(
                request, error_response(404, "not found; use POST /decode or POST /encode")
            )
        return LARGEST

    async def answer(self, request: HttpRequest, body: bytes) -> HttpResponse:
        """Encode or decode the payloads of a request."""
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(self.threads, self._coded, _operation(request), body)
        return self._with_origin(request, response)

    def _coded(self, operation: str, body: bytes) -> HttpResponse:
        try:
            payloads = read_payloads(body)
        except (ValueError, RecursionError):
            return error_response(
                400, 'the body must be {"payloads": [...]}, as Temporal writes payloads in JSON'
            )
        try:
            return HttpResponse(200, written_payloads(coded(self.codec, operation, payloads)), _JSON)
        except PayloadError as error:
            return error_response(400, str(error))
        except BaseException as error:  # the codec is the author's code, and may even raise SystemExit
            return error_response(
                500, f"the codec raised {type(error).__name__}, or returned something that is not a payload"
            )

    def _log_in(self, request: HttpRequest) -> HttpResponse:
        code = parse_qs(request.query).get("code", [""])[0]
        if not self.access.redeem(code):
            return error_response(
                403, "this link was already used, or is invalid: restart the codec server to get a new link"
            )
        cookie = self.access.set_cookie(secure=self.names.is_secure(request.headers))
        headers = (("Set-Cookie", cookie), ("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"))
        return HttpResponse(200, _LOGGED_IN, headers=headers)

    def _is_allowed(self, request: HttpRequest) -> bool:
        """Whether the origin is configured. Programs send no origin; browsers always send one with a POST."""
        origin = request.headers.get("origin")
        return origin is None or origin in self.origins

    def _with_origin(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        """Return the response with headers that permit a page of a configured origin to read it."""
        origin = request.headers.get("origin")
        headers = [("Vary", "Origin"), ("Cache-Control", "no-store")]
        if origin is not None and origin in self.origins:
            headers += [
                ("Access-Control-Allow-Origin", origin),
                ("Access-Control-Allow-Credentials", "true"),
                ("Access-Control-Allow-Headers", _HEADERS),
                ("Access-Control-Allow-Methods", "POST, OPTIONS"),
                ("Access-Control-Allow-Private-Network", "true"),
            ]
        return HttpResponse(
            response.status, response.body, response.content_type, (*response.headers, *headers)
        )


def _operation(request: HttpRequest) -> str:
    return request.path.rstrip("/").rpartition("/")[2]


def read_payloads(body: bytes) -> list[Payload]:
    """Return the payloads of a request. Raise `ValueError` if the body is malformed."""
    import msgspec

    from hourglass.converter import Payload

    payload_type: Any = msgspec.defstruct("One", [("metadata", dict[str, bytes], {}), ("data", bytes, b"")])
    body_type: Any = msgspec.defstruct("Whole", [("payloads", list[payload_type])])
    return [
        Payload(
            payload.data,
            payload.metadata.get("encoding", b"").decode(errors="replace"),
            {key: value for key, value in payload.metadata.items() if key != "encoding"} or None,
        )
        for payload in msgspec.json.decode(body, type=body_type).payloads
    ]


def written_payloads(payloads: Sequence[Payload]) -> bytes:
    """Return the body of a response."""
    import msgspec

    return msgspec.json.encode(
        {
            "payloads": [
                {
                    "metadata": {"encoding": payload.encoding.encode(), **(payload.metadata or {})},
                    "data": payload.data,
                }
                for payload in payloads
            ]
        }
    )


def coded(codec: PayloadCodec, way: str, payloads: list[Payload]) -> Sequence[Payload]:
    """Return the payloads encoded or decoded by the codec.

    A page may contain payloads that are older than the codec, or encoded by another codec. These are returned unchanged.
    Raise `PayloadError` if no payload can be converted.
    """
    from hourglass.converter._codec import run_codec

    try:
        return run_codec(codec, way, payloads)
    except PayloadError:
        if way == "encode" or len(payloads) < 2:
            raise
    made: list[Payload] = []
    refused = 0
    for payload in payloads:
        try:
            made.extend(run_codec(codec, way, [payload]))
        except PayloadError:
            made.append(payload)
            refused += 1
    if refused == len(payloads):
        raise PayloadError("the codec rejected all payloads")
    return made
