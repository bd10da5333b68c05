"""`hourglass codec-server`: a codec for Temporal's UI and command line, over HTTP.

They send the payloads of a page to `/decode` (or `/encode`) of an address that the reader has set, and show what comes back. The
answer is what the codec protects, so: loopback unless a token is asked for; only the origins that were named may read the answer
in a browser; a `Host` that is not ours is refused, else a page elsewhere could be told that its own name is our address. No
payload is logged, and no message of an error holds one.
"""

from __future__ import annotations

import hmac
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hourglass._cli import connecting, console
from hourglass._cli.connecting import Codec, Host
from hourglass.errors import PayloadError, UsageError

if TYPE_CHECKING:
    from hourglass.converter import Codec as PayloadCodec
    from hourglass.converter import Payload

TOKEN = "HOURGLASS_CODEC_TOKEN"
UI_ORIGINS = ("http://localhost:8233", "http://127.0.0.1:8233", "http://localhost:8080")
"""Where Temporal's UI is: of a dev server, and of its docker images."""
LARGEST = 64 * 1024 * 1024
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_WHAT_IT_IS = (
    b"This is a codec server. Set its address in Temporal's UI; it answers POST /decode and POST /encode.\n"
)
_HEADERS = "Authorization, Content-Type, X-Namespace"


def codec_server(
    codec: Codec = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 for a free one.")] = 8081,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="URL",
            help="Where Temporal's UI is, as the browser shows it; may be repeated.  "
            f"[default: {', '.join(UI_ORIGINS)}]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="HOST[:PORT]", help="Another name of this server, as behind a proxy."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help=f"What must come as 'Authorization: Bearer TEXT'.  [default: ${TOKEN}]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Decode payloads for Temporal's UI.

    Set its address in the UI (the glasses at the top, "Codec Server"), or with `temporal --codec-endpoint`.

    \b
    Examples:
      hourglass codec-server --codec app.secrets:codec
      hourglass codec-server --codec app.secrets:codec --origin https://temporal.example.com
    """
    chosen = connecting.codec_named(codec)
    if chosen is None:
        raise UsageError("which codec? Name it with --codec app.secrets:codec, or set HOURGLASS_CODEC")
    secret = checked_token(host, token or os.environ.get(TOKEN) or None)
    origins = checked_origins(origin or UI_ORIGINS)
    wait_for_sigterm = connecting.sigterm()
    with served(
        chosen, host=host, port=port, origins=origins, token=secret, names=tuple(name or ())
    ) as address:
        console.show(f"the codec server is at {address}, for {', '.join(origins)}")
        wait_for_sigterm()


def checked_token(host: str, token: str | None) -> str | None:
    """The token that is asked for: none on loopback unless one was given. Raises `UsageError` beyond it without one."""
    if token is not None and len(token) < 16:
        raise UsageError("a token has 16 characters or more")
    if host not in _LOOPBACK and token is None:
        raise UsageError(
            f"a codec server on {host} lets others read what the codec protects: give --token, or set {TOKEN}; "
            f"for example {secrets.token_urlsafe(24)}"
        )
    return token


def checked_origins(origins: Sequence[str]) -> tuple[str, ...]:
    """Origins as browsers say them. Raises `UsageError`, also for `*`: it would let any page read what is decoded."""
    for each in origins:
        scheme, _, rest = each.partition("://")
        if scheme not in ("http", "https") or not rest or "/" in rest or "*" in rest:
            raise UsageError(
                f"an origin is such as https://temporal.example.com, without a path, not {each!r}"
            )
    return tuple(origins)


@contextmanager
def served(
    codec: PayloadCodec,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    origins: Sequence[str] = UI_ORIGINS,
    token: str | None = None,
    names: Sequence[str] = (),
) -> Iterator[str]:
    """Within the block the codec is served, in threads; gives the address."""

    class Handler(CodecHandler):
        pass

    Handler.codec, Handler.origins, Handler.token = codec, frozenset(origins), token
    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UsageError(f"the codec server cannot listen on {host}:{port}: {error.strerror}") from None
    server.daemon_threads = True
    own = {host, *names, *(_LOOPBACK if host in _LOOPBACK or host in ("0.0.0.0", "::") else ())}
    Handler.hosts = frozenset(
        {each.lower() for each in own if ":" in each}
        | {f"{each.lower()}:{server.server_port}" for each in own}
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class CodecHandler(BaseHTTPRequestHandler):
    """One request. What it needs to know is set on a class of its own for each server."""

    codec: PayloadCodec
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    token: str | None = None
    timeout = 60.0
    server_version = "hourglass"
    sys_version = ""

    def do_OPTIONS(self) -> None:
        """A browser asks whether a page may ask."""
        self._answer(204 if self._is_allowed_origin() else 403)

    def do_GET(self) -> None:
        """A person has opened the address in a browser: say what it is for."""
        self._answer(405, _WHAT_IT_IS, _TEXT)

    def do_POST(self) -> None:
        """Encode or decode."""
        problem = self._problem()
        if problem is None:
            code, body, kind = self._coded(self._way, self.rfile.read(int(self.headers["content-length"])))
        else:
            self.close_connection = True  # what was not read must not be taken for a request
            (code, why), kind = problem, _TEXT
            body = why.encode()
        self._answer(code, body, kind)

    @property
    def _way(self) -> str:
        return self.path.partition("?")[0].rstrip("/").rpartition("/")[2]

    def _problem(self) -> tuple[int, str] | None:
        """Why a request is not read."""
        length = self.headers.get("content-length", "")
        if self.headers.get("host", "").lower() not in self.hosts:
            return 421, "this is another server: name it with --name"
        if not self._is_allowed_origin():
            return 403, "pages of this origin may not ask: name it with --origin"
        if not self._has_token():
            return 401, "a token is needed"
        if self._way not in ("encode", "decode"):
            return 404, "there are /decode and /encode"
        if not (length.isascii() and length.isdigit()):
            return 411, "a length is needed"
        return (413, f"more than {LARGEST} bytes") if int(length) > LARGEST else None

    def _coded(self, way: str, body: bytes) -> tuple[int, bytes, str]:
        try:
            return 200, written_payloads(coded(self.codec, way, read_payloads(body))), _JSON
        except ValueError:
            return 400, b'the body is {"payloads": [...]}, as Temporal writes payloads in JSON', _TEXT
        except PayloadError as error:
            return 400, str(error).encode(), _TEXT

    def _is_allowed_origin(self) -> bool:
        origin = self.headers.get("origin")
        return origin is None or origin in self.origins

    def _has_token(self) -> bool:
        said = self.headers.get("authorization", "")
        return self.token is None or hmac.compare_digest(said.encode(), f"Bearer {self.token}".encode())

    def _answer(self, code: int, body: bytes = b"", kind: str = _JSON) -> None:
        self.send_response(code)
        origin = self.headers.get("origin")
        if origin in self.origins:
            self.send_header("Access-Control-Allow-Origin", origin)
            self.send_header("Access-Control-Allow-Credentials", "true")
            self.send_header("Access-Control-Allow-Headers", _HEADERS)
            self.send_header("Access-Control-Allow-Methods", "POST, OPTIONS")
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Vary", "Origin")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests hold ids, and pages ask often."""


# --- payloads -----------------------------------------------------------------------------------------------------------


def read_payloads(body: bytes) -> list[Payload]:
    """The payloads of a request. Raises `ValueError`."""
    import msgspec

    from hourglass.converter import Payload

    one: Any = msgspec.defstruct("One", [("metadata", dict[str, bytes], {}), ("data", bytes, b"")])
    whole: Any = msgspec.defstruct("Whole", [("payloads", list[one])])
    return [
        Payload(
            each.data,
            each.metadata.get("encoding", b"").decode(errors="replace"),
            {key: value for key, value in each.metadata.items() if key != "encoding"} or None,
        )
        for each in msgspec.json.decode(body, type=whole).payloads
    ]


def written_payloads(payloads: Sequence[Payload]) -> bytes:
    """An answer."""
    import msgspec

    return msgspec.json.encode(
        {
            "payloads": [
                {
                    "metadata": {"encoding": each.encoding.encode(), **(each.metadata or {})},
                    "data": each.data,
                }
                for each in payloads
            ]
        }
    )


def coded(codec: PayloadCodec, way: str, payloads: list[Payload]) -> Sequence[Payload]:
    """What the codec makes of them. A page may hold payloads from before the codec, or of another: they come back as they are,
    unless there is nothing else. Raises `PayloadError`.
    """
    from hourglass.converter._codec import run_codec

    try:
        return run_codec(codec, way, payloads)
    except PayloadError:
        if way == "encode" or len(payloads) < 2:
            raise
    made: list[Payload] = []
    refused = 0
    for each in payloads:
        try:
            made.extend(run_codec(codec, way, [each]))
        except PayloadError:
            made.append(each)
            refused += 1
    if refused == len(payloads):
        raise PayloadError("the codec refused every payload")
    return made
