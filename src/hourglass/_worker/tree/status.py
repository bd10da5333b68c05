"""A worker's state over HTTP, from the actual supervision tree: `/live`, `/ready`, `/status` and
`/metrics`.

Opt-in, and on loopback by default. The server runs on the control loop, executes no user code, and accepts only GET and
HEAD. Liveness and readiness are public, everything else requires a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from hourglass._contract.engine_status import EngineStatus, WorkerProcess
from hourglass._http.access import Access, AccessDecision, Credentials, read_token
from hourglass._http.names import host_only
from hourglass._http.server import HttpRequest, HttpResponse, HttpServer, listening_socket
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.life import HandleState
from hourglass._worker.targets import is_loopback
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.services import QueueServices
from hourglass.errors import UsageError
from hourglass.metrics import Registry, prometheus_text
from hourglass.metrics._samples import CONTENT_TYPE

logger = logging.getLogger("hourglass.worker")

_RECENT = 20

ALLOWED_HOSTS = "HOURGLASS_STATUS_HOSTS"
"""The environment variable with host names, separated by commas, that a status endpoint on loopback accepts in addition
to the names of this machine.
"""

TOKEN = "HOURGLASS_STATUS_TOKEN"
"""The environment variable with the token for `/status` and `/metrics`, or `@` and the path of a file with the token."""

OPEN = "none"
"""The value of `HOURGLASS_STATUS_TOKEN` that allows access without a token."""


def status_report(app: Application, state: str) -> dict[str, Any]:
    """Return the state of an Application as JSON data, without payloads and workflow ids."""
    tree = app.tree
    queues = {services.queue: _queue(app, services) for services in app.configured()}
    engine = app.raw.status()
    store = store_report(engine)
    reasons = list(_not_ready(app, engine.trouble, queues, store))
    return {
        "state": state,
        # Only for a file: whether this process owns it or works for the owner, and all processes that work on it.
        "engine": engine.role,
        "processes": [_process(process) for process in engine.processes],
        "alive": tree is not None and tree.root.alive,
        "ready": not reasons,
        "reasons": reasons,
        "store": store,
        "queues": queues,
        "evaluations": len(app.evaluators.children()),
        "attempts": len(app.executors.children()),
        "restarts": app.restarts,
        "tree": [] if tree is None else [path for path in tree.paths() if not _is_task(path)],
        "recent": []
        if tree is None
        else [f"{report.kind} {report.path}" for report in tree.reports()[-_RECENT:]],
    }


def _process(process: WorkerProcess) -> dict[str, Any]:
    return {
        "pid": process.process_id,
        "owner": process.is_owner,
        "here": process.process_id == os.getpid(),
        "task_queues": list(process.task_queues),
        "open_activations": process.tasks,
        "open_attempts": process.attempts,
    }


def store_report(engine: EngineStatus) -> dict[str, Any] | None:
    """Return the condition of the file that this process owns, and of its disk; None if the process owns no file."""
    disk = engine.disk
    if disk is None:
        return None
    return {
        "full": disk.is_full,
        "held": disk.held,
        "free_bytes": disk.free_bytes,
        "reserve_bytes": disk.reserve_bytes,
        "file_bytes": disk.file_bytes,
    }


def _not_ready(
    app: Application, trouble: str, queues: dict[str, dict[str, Any]], store: dict[str, Any] | None
) -> Iterator[str]:
    """Yield the reasons not to send work to this worker, as readable text. Yield nothing if the worker is ready."""
    outage = app.reachability.outage
    if outage is not None:
        yield outage.reason
    if trouble:
        yield trouble
    if not queues:
        yield "no task queue is served"
    for name, queue in queues.items():
        if not queue["polling"]:
            yield f"task queue {name!r} is not polled"
        if not queue["healthy"]:
            yield f"task queue {name!r}: too many of its threads hang in workflow code"
        if queue["trouble"]:
            yield f"task queue {name!r}: {queue['trouble']}"
    if store is not None and store["full"]:
        yield store["held"] or "the disk of the file has no space left"


def _queue(app: Application, services: QueueServices) -> dict[str, Any]:
    active = [record for record in app.tables.of_queue(services.queue) if record.state is HandleState.ACTIVE]
    return {
        # A handle that waits for its worker's restart has polls outstanding, but no loop that receives their results.
        "polling": any(_polls(record) for record in active if record.spare is None),
        "healthy": not services.lanes.too_many_stuck,
        "trouble": services.executor.runner.trouble,
        "generation": max((record.generation for record in active), default=0),
        "open_activations": sum(len(record.runs.open) for record in active),
        "open_attempts": sum(len(record.attempts.open) for record in active),
        "lanes": [asdict(lane) for lane in services.lanes.status()],
        "parked": app.parked.count(services.queue, len(services.lanes.parked.reasons)),
    }


def _polls(record: HandleRecord) -> bool:
    """Whether both inboxes of the handle are open, or hold items that wait for their dispatch."""
    return all(inbox.is_open or inbox.undelivered for inbox in record.inboxes())


def _is_task(path: str) -> bool:
    """Whether a path belongs to a task in progress. There may be thousands of tasks, so only their number is reported."""
    return path.startswith(("Application/EvaluatorSupervisor/", "Application/ExecutorSupervisor/"))


class StatusServer:
    """Serves `/live`, `/ready`, `/status` and, with a registry, `/metrics`.

    `/live` and `/ready` answer yes or no to anyone. Details (reasons, names of queues and workflow types, processes)
    require the token from the environment variable `HOURGLASS_STATUS_TOKEN`.
    """

    def __init__(
        self, address: str, report: Callable[[], dict[str, Any]], registry: Registry | None = None
    ) -> None:
        host, _, port = str(address).rpartition(":")
        if not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise UsageError(f"status_address must be host:port, such as 127.0.0.1:8080, not {address!r}")
        self._host = host.strip("[]") or "127.0.0.1"
        self._port = int(port)
        self._bound_to_loopback = is_loopback(self._host)
        names = os.environ.get(ALLOWED_HOSTS, "").split(",")
        self._allowed = frozenset(name.strip().lower() for name in names if name.strip())
        self._access = _access(self._port)
        self._report = report
        self._registry = registry
        self._server = HttpServer(self._check, self._answer)

    @property
    def address(self) -> str:
        """The address on which the server listens; port 0 is replaced by the real port."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._server.port or self._port}"

    async def start(self) -> None:
        """Start serving, on the control loop. Raises `UsageError` if the address is not available."""
        loop = asyncio.get_running_loop()
        try:
            # On a thread, because the host may be a name that must be resolved.
            listening = await loop.run_in_executor(None, listening_socket, self._host, self._port)
            await self._server.start(listening)
        except OSError as error:
            raise UsageError(
                f"the status endpoint cannot listen on {self.address}: {error.strerror or error}"
            ) from None
        logger.info("status on http://%s/status", self.address)

    async def stop(self) -> None:
        await self._server.stop()

    def _check(self, request: HttpRequest) -> HttpResponse | int:
        """Reject a request for another host, or with a method other than GET or HEAD. Bodies are not read."""
        if not self._is_own_host(request.headers.get("host")):
            return _document(
                421,
                {
                    "error": (
                        "the request's Host header is not allowed, because this endpoint listens on loopback; "
                        f"{ALLOWED_HOSTS} allows further names"
                    )
                },
            )
        if request.method not in ("GET", "HEAD"):
            return _document(405, {"error": "only GET is supported"})
        return 0

    def _is_own_host(self, header: str | None) -> bool:
        """Whether the `Host` header is a name of this machine, or missing.

        A page in a browser on this machine can reach a loopback port through a host name of the page's site that
        resolves to this machine (DNS rebinding). The `Host` header is then that name. An endpoint on a network address
        is reachable under any name anyway.
        """
        if not self._bound_to_loopback or header is None:
            return True
        name = host_only(header)
        return name in self._allowed or is_loopback(name)

    async def _answer(self, request: HttpRequest, body: bytes) -> HttpResponse:
        try:
            return self._page(request)
        except Exception as error:
            logger.exception("the status could not be reported")
            return _document(500, {"error": type(error).__name__})

    def _page(self, request: HttpRequest) -> HttpResponse:
        verdict = (
            AccessDecision.ADMITTED
            if self._access is None
            else self._access.check_request(request.headers, request.address)
        )
        is_admitted = verdict is AccessDecision.ADMITTED
        match request.path:
            case "/live":
                alive = self._report()["alive"]
                return _document(200 if alive else 503, {"alive": alive})
            case "/ready":
                report = self._report()
                if report["ready"]:
                    return _document(200, {"ready": True})
                reasons = {"reasons": report["reasons"]} if is_admitted else {}
                return _document(503, {"ready": False, **reasons})
            case "/status" | "/metrics" if not is_admitted:
                return _rejected(verdict)
            case "/status":
                return _document(200, self._report())
            case "/metrics" if self._registry is not None:
                return HttpResponse(200, prometheus_text(self._registry.collect()).encode(), CONTENT_TYPE)
            case _:
                return _document(
                    404, {"error": "not found; the paths are /live, /ready, /status and /metrics"}
                )


def _access(port: int) -> Access | None:
    """Return the token check; None if the endpoint is open. Without a configured token nobody has access."""
    configured = os.environ.get(TOKEN)
    if configured == OPEN:
        return None
    return Access(Credentials.create(read_token(configured, TOKEN)), port)


def _rejected(verdict: AccessDecision) -> HttpResponse:
    if verdict is AccessDecision.LIMITED:
        return _document(429, {"error": "too many invalid tokens: wait a minute"}, ("Retry-After", "60"))
    message = (
        f"a token is required, as 'Authorization: Bearer …': set {TOKEN} of the worker to the token or to @FILE; "
        f"{TOKEN}={OPEN} allows access without a token"
    )
    return _document(401, {"error": message}, ("WWW-Authenticate", "Bearer"))


def _document(code: int, document: dict[str, Any], *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(code, json.dumps(document, indent=1).encode(), "application/json", headers)
