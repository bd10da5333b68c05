"""`/live`, `/ready` and `/status` over HTTP, from the tree's real state. Opt-in, on loopback unless told otherwise.

A few lines of HTTP/1.1 on the control loop: no framework, no user code, nothing but GET, one answer per connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from hourglass._bridge.handle_life import HandleState
from hourglass._runtime.application import Application
from hourglass.errors import UsageError

logger = logging.getLogger("hourglass.worker")

_LIMIT = 8192
_PATIENCE = 5.0


def status_report(app: Application, state: str) -> dict[str, Any]:
    """What there is to say about an Application, as JSON data. No payloads, no ids of workflows."""
    tree = app.tree
    queues = {}
    for services in app.configured():
        active = [
            r
            for r in app.tables.records.values()
            if r.queue == services.queue and r.state is HandleState.ACTIVE
        ]
        queues[services.queue] = {
            "polling": bool(active) and app.registry.whereis(services.queue) is not None,
            "generation": max((record.generation for record in active), default=0),
            "open_activations": sum(len(record.runs.open) for record in active),
            "open_attempts": sum(len(record.attempts.open) for record in active),
            "lanes": [
                {
                    "name": lane.name,
                    "runs": lane.runs,
                    "queued": lane.queued,
                    "replaced": lane.replaced,
                    "stuck": lane.stuck,
                }
                for lane in services.lanes.status()
            ],
            "parked": sum(len(counts.parked) for counts in services.lanes.counts()),
        }
    reports = [] if tree is None else [f"{r.kind} {r.path}" for r in tree.reports()][-20:]
    return {
        "state": state,
        "alive": tree is not None and tree.root.alive,
        "ready": bool(queues) and all(queue["polling"] for queue in queues.values()),
        "queues": queues,
        "tree": [] if tree is None else [path for path in tree.paths() if path.count("/") <= 4],
        "recent": reports,
    }


class StatusServer:
    """Answers `/live`, `/ready` and `/status`."""

    def __init__(self, address: str, report: Callable[[], dict[str, Any]]) -> None:
        host, _, port = address.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise UsageError(f"status_address must be host:port, such as 127.0.0.1:8080, not {address!r}")
        self._host = host.strip("[]") or "127.0.0.1"
        self._port = int(port)
        self._report = report
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port it listens on; of use where port 0 was asked for."""
        if self._server is None or not self._server.sockets:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Begin to answer. On the control loop."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_LIMIT)
        except OSError as error:
            raise UsageError(
                f"the status endpoint cannot listen on {self._host}:{self._port}: {error.strerror}"
            ) from None
        logger.info("status on http://%s:%s/status", self._host, self.port)

    async def stop(self) -> None:
        """Answer no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                request = (await reader.readline()).decode("latin-1").split()
                while (await reader.readline()).strip():
                    pass
                writer.write(self._answer(request))
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.LimitOverrunError):
            pass  # whoever asks badly is not answered
        finally:
            writer.close()

    def _answer(self, request: list[str]) -> bytes:
        if len(request) < 2 or request[0] not in ("GET", "HEAD"):
            return _response(405, {"error": "only GET"})
        report = self._report()
        match request[1].partition("?")[0]:
            case "/live":
                return _response(200 if report["alive"] else 503, {"alive": report["alive"]})
            case "/ready":
                return _response(200 if report["ready"] else 503, {"ready": report["ready"]})
            case "/status":
                return _response(200, report)
            case _:
                return _response(404, {"error": "there are /live, /ready and /status"})


def _response(code: int, document: dict[str, Any]) -> bytes:
    reason = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}[code]
    body = json.dumps(document, indent=1).encode()
    head = f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
