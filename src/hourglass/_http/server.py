"""A small HTTP/1.1 server on asyncio, for the codec server and the status endpoint. It uses no framework, and
serves one request per connection.

The head of a request is checked before its body is read: `check` rejects the request or returns the maximum
size of its body. A body requires a `Content-Length`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, TypeAlias

from hourglass._http.limits import BACKLOG, ConnectionGate, RequestPhase

logger = logging.getLogger("hourglass.http")

LARGEST_HEAD: Final = 16 * 1024
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class HttpRequest:
    """The head of a request. Header names are in lower case."""

    method: str
    target: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    address: str
    """The IP address of the peer."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        """The part of the target after the first question mark."""
        return self.target.partition("?")[2]


@dataclass(frozen=True)
class HttpResponse:
    """A response."""

    status: int
    body: bytes = b""
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, with_body: bool = True) -> bytes:
        """Return the response in its wire format."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            *(f"{name}: {value}" for name, value in self.headers),
            "Connection: close",
        ]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + (self.body if with_body else b"")


def error_response(status: int, message: str) -> HttpResponse:
    """Return a response that rejects a request, with the reason as plain text."""
    return HttpResponse(status, f"{message}\n".encode())


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Raise `OSError` if this fails, or if the host is unknown."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)  # from now on a client waits for its response instead of being rejected
    except OSError:
        listening.close()
        raise
    return listening


Check: TypeAlias = Callable[[HttpRequest], HttpResponse | int]
"""A function that checks the head of a request. It returns the response that rejects the request, or the
maximum size of the body.
"""

Answer: TypeAlias = Callable[[HttpRequest, bytes], Awaitable[HttpResponse]]
"""A function that returns the response to a request that was not rejected."""


class _BadRequestError(Exception):
    """The error for a request that is not HTTP or is too large. It contains the response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.response = error_response(status, message)


class HttpServer:
    """A server on one event loop, from `start` to `stop`."""

    def __init__(self, check: Check, answer: Answer, gate: ConnectionGate | None = None) -> None:
        self._check = check
        self._answer = answer
        self._gate = gate or ConnectionGate()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int | None:
        """The port on which the server listens, or None before `start` and after `stop`."""
        return (
            int(self._server.sockets[0].getsockname()[1]) if self._server and self._server.sockets else None
        )

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a bound socket."""
        self._server = await asyncio.start_server(
            self._serve, sock=listening, limit=LARGEST_HEAD, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Stop accepting connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        if not self._gate.admit(transport):
            return
        try:
            try:
                request = await _read_head(reader, writer)
                response = await self._response(request, reader, writer)
                with_body = request.method != "HEAD"
            except _BadRequestError as error:
                response, with_body = error.response, True
            self._gate.enter(transport, RequestPhase.FLUSH)
            writer.write(response.encode(with_body=with_body))
            await writer.drain()
            await _discard_input(reader, writer)
        except (OSError, EOFError):
            pass  # the peer has closed the connection or was disconnected
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()  # the timeout of the phase applies until the connection is closed
            self._gate.leave(transport)

    async def _response(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> HttpResponse:
        """Respond to a request. Errors are logged by their types only, because messages and tracebacks may
        contain the request's data.
        """
        try:
            body = await self._read_body(request, reader, writer)
            self._gate.enter(writer.transport, RequestPhase.ANSWER)
            return body if isinstance(body, HttpResponse) else await self._answer(request, body)
        except (_BadRequestError, OSError, EOFError):
            raise
        except Exception as error:
            logger.error("a request could not be answered: %s", type(error).__name__)
            return error_response(500, "internal server error")

    async def _read_body(
        self, request: HttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | HttpResponse:
        """Return the body, or the response that rejects the request."""
        largest = self._check(request)
        if isinstance(largest, HttpResponse):
            return largest
        length = _body_length(request)
        if length > largest:
            raise _BadRequestError(413, f"the request body is too large: the maximum is {largest} bytes")
        if not length:
            return b""
        self._gate.enter(writer.transport, RequestPhase.BODY)
        if request.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return await reader.readexactly(length)


async def _read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest:
    """Read the head of a request. Raise `_BadRequestError` if the head is malformed or too large."""
    left = LARGEST_HEAD
    lines: list[str] = []
    while True:
        try:
            line = await reader.readline()
        except ValueError:  # longer than the reader's limit
            raise _BadRequestError(431, "the request headers are too large") from None
        if not line:
            raise EOFError
        left -= len(line)
        if left < 0:
            raise _BadRequestError(431, "the request headers are too large")
        text = line.decode("latin-1").rstrip("\r\n")
        if not text:
            break
        lines.append(text)
    words = lines[0].split() if lines else []
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _BadRequestError(400, "the request is not HTTP/1.1")
    headers: dict[str, str] = {}
    for header in lines[1:]:
        name, separator, value = header.partition(":")
        key = name.lower()
        if not separator or not name or name != name.strip() or (key in headers and key in _ONCE):
            raise _BadRequestError(400, "the headers are malformed")
        delimiter = "; " if key == "cookie" else ", "  # HTTP/2 proxies send one header per cookie
        headers[key] = f"{headers[key]}{delimiter}{value.strip()}" if key in headers else value.strip()
    peer = writer.get_extra_info("peername")
    return HttpRequest(words[0], words[1], headers, str(peer[0]) if peer else "")


_ONCE: Final = frozenset({"host", "content-length", "authorization", "origin"})


def _body_length(request: HttpRequest) -> int:
    """Return the length of a request's body. Raise `_BadRequestError` if a body has no `Content-Length`."""
    if "transfer-encoding" in request.headers:
        raise _BadRequestError(411, "the Content-Length header is required")
    length = request.headers.get("content-length")
    if length is None:
        if request.method == "POST":
            raise _BadRequestError(411, "the Content-Length header is required")
        return 0
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        raise _BadRequestError(400, "the Content-Length is not a number")
    return int(length)


async def _discard_input(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read and discard the remaining data of a rejected request, for a short time.

    Closing a socket with unread data makes the kernel reset the connection, and the peer would not receive the
    response.
    """
    if writer.can_write_eof():
        writer.write_eof()
    left = 1024 * 1024
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while left > 0 and (data := await reader.read(65536)):
                left -= len(data)
