"""The server of the web UI: address, credentials, and limits on connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from asyncio import sleep
from collections.abc import Iterator
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hourglass._http.access import Access, Credentials
from hourglass._http.limits import BACKLOG, ConnectionGate, RequestPhase
from hourglass._http.names import OwnNames
from hourglass._http.server import LARGEST_HEAD, listening_socket
from hourglass._tools.web.app import build
from hourglass._tools.web.security import LOGIN, ON_ADMITTED
from hourglass._tools.web.site import Site
from hourglass.errors import UsageError

PORT = 8300


class LimitedConnection(H11Protocol):
    """A connection of uvicorn that reports its phase to a gate. Each server has a subclass with its own gate.

    uvicorn itself limits neither the number of idle connections nor the time for heads and bodies.

    Requests without a token or cookie must be answered within the time limit for the head. Otherwise, anyone could occupy
    all connections by sending one request after another.
    """

    gate: ClassVar[ConnectionGate]

    def __init__(self, *, app_state: dict[str, Any], **options: Any) -> None:
        super().__init__(app_state={**app_state, ON_ADMITTED: self._admit}, **options)
        self._is_admitted = False

    def _admit(self) -> None:
        """Protect this connection while its current request is answered."""
        self._is_admitted = True
        self._note_phase()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or close it if there are too many."""
        super().connection_made(transport)
        self.gate.admit(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the gate."""
        self.gate.leave(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        super().data_received(data)
        self._note_phase()

    def send_400_response(self, msg: str) -> None:
        """Reject malformed input and close the connection. uvicorn sends a body even for HEAD, which h11 rejects."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().send_400_response(msg)
        self.transport.close()

    def on_response_complete(self) -> None:
        """Prepare for the next request."""
        self._is_admitted = False
        super().on_response_complete()
        self._note_phase()

    def pause_writing(self) -> None:
        """Record that the peer does not read the response."""
        super().pause_writing()
        self._note_phase()

    def resume_writing(self) -> None:
        """Record that the peer reads the response again."""
        super().resume_writing()
        self._note_phase()

    def _note_phase(self) -> None:
        if self not in self.connections:
            return
        if self.transport.is_closing() or self.flow.write_paused:
            self.gate.enter(self.transport, RequestPhase.FLUSH)
        elif self.conn.their_state is h11.SEND_BODY:
            self.gate.enter(self.transport, RequestPhase.BODY)
        elif self._is_admitted:
            self.gate.enter(self.transport, RequestPhase.ANSWER)
        else:
            self.gate.enter(self.transport, RequestPhase.HEAD)


class ClosingServer(uvicorn.Server):
    """A uvicorn server that also closes the connections that outlast its graceful shutdown."""

    def __init__(self, config: uvicorn.Config, gate: ConnectionGate) -> None:
        super().__init__(config)
        self._gate = gate

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down, and then close the connections with responses that their peers do not read."""
        await super().shutdown(sockets)
        self._gate.close()
        await sleep(0)  # the transports close their sockets in the loop's next iteration


def bound(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on the requested port. Without one, use the default port or any free port."""
    for candidate in (port,) if port is not None else (PORT, 0):
        try:
            return listening_socket(host, candidate)
        except OSError as error:
            if candidate == 0 or port is not None:
                raise UsageError(
                    f"the web UI cannot be served on {host}:{candidate}: {error.strerror}"
                ) from error
    raise AssertionError("the loop returns or raises")


def address_of(listening: socket.socket) -> str:
    """Return the URL of a web UI that listens on this socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def link_of(listening: socket.socket, credentials: Credentials) -> str:
    """Return the one-time link that logs in a browser."""
    return f"{address_of(listening)}{LOGIN}?code={credentials.link.code}"


@contextlib.contextmanager
def served(
    site: Site,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    credentials: Credentials | None = None,
    names: tuple[str, ...] = (),
    listening: socket.socket | None = None,
) -> Iterator[str]:
    """Serve the web UI on a thread during the block, and yield its URL.

    `listening` is a socket that already listens, for processes that use it one after another.
    """
    listening = bound(host, port) if listening is None else listening
    number = listening.getsockname()[1]
    app = build(
        site,
        names=OwnNames(host, number, names),
        access=Access(credentials or Credentials.create(), number),
    )
    gate = ConnectionGate()
    protocol: Any = type("_Connection", (LimitedConnection,), {"gate": gate})
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        loop="asyncio",
        http=protocol,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        server_header=False,
        proxy_headers=False,  # otherwise a local peer could claim any address, and guess tokens without limit
        timeout_graceful_shutdown=1,  # open pages keep their connections open indefinitely
    )
    server = ClosingServer(config, gate)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]  # the program handles signals
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listening]}, name="hourglass-ui", daemon=True
    )
    thread.start()
    try:
        yield address_of(listening)
    finally:
        server.should_exit = True
        thread.join(5.0)
        site.close()
        listening.close()
