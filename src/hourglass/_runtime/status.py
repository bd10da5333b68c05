"""What a worker tells of itself over HTTP, from the tree's real state: `/live`, `/ready`, `/status`, `/metrics`; its metrics.

Opt-in, on loopback unless told otherwise. A few lines of HTTP/1.1 on the control loop: no framework, no user code, nothing but
GET, one answer per connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from hourglass._bridge.handles import HandleRecord
from hourglass._bridge.life import HandleState
from hourglass._contract.deployments import QueueStats, WorkerProcess
from hourglass._runtime.application import Application
from hourglass._runtime.evaluation import Counts
from hourglass._runtime.services import QueueServices
from hourglass._runtime.targets import is_loopback
from hourglass.errors import UsageError
from hourglass.metrics import Family, Kind, Registry, Sample, prometheus_text
from hourglass.metrics._samples import CONTENT_TYPE, Labels, labels_of

if TYPE_CHECKING:
    from hourglass._embedded.engine.engine import EngineFigures

logger = logging.getLogger("hourglass.worker")

_LIMIT = 8192
_PATIENCE = 5.0
_RECENT = 20
_END_OF_HEAD = b"\r\n\r\n"

ALLOWED_HOSTS = "HOURGLASS_STATUS_HOSTS"
"""Names, with commas between them, under which a status endpoint on loopback may be asked besides those of this machine."""


def status_report(app: Application, state: str) -> dict[str, Any]:
    """What there is to say about an Application, as JSON data. No payloads, no ids of workflows."""
    tree = app.tree
    queues = {services.queue: _queue(app, services) for services in app.configured()}
    store = store_report(app)
    reasons = list(_not_ready(app, queues, store))
    return {
        "state": state,
        # Of a file: whether this process owns it or works for the one that does, and all that work on it. Other engines
        # have nothing to say here.
        "engine": str(getattr(app.raw, "standing", "")),
        "processes": [_process(each) for each in worker_processes(app)],
        "alive": tree is not None and tree.root.alive,
        "ready": not reasons,
        "reasons": reasons,
        "store": store,
        "queues": queues,
        "evaluations": len(app.evaluators.children()),
        "attempts": len(app.executors.children()),
        "restarts": app.restarts,
        "tree": [] if tree is None else [path for path in tree.paths() if not _is_task(path)],
        "recent": [] if tree is None else [f"{each.kind} {each.path}" for each in tree.reports()[-_RECENT:]],
    }


def worker_processes(app: Application) -> tuple[WorkerProcess, ...]:
    """The processes that work on the same file; none where the engine is a server, or in memory."""
    processes: tuple[WorkerProcess, ...] = getattr(app.raw, "processes", ())
    return processes


def _process(process: WorkerProcess) -> dict[str, Any]:
    return {
        "pid": process.process_id,
        "owner": process.is_owner,
        "here": process.process_id == os.getpid(),
        "task_queues": list(process.task_queues),
        "open_activations": process.tasks,
        "open_attempts": process.attempts,
    }


def store_report(app: Application) -> dict[str, Any] | None:
    """How it stands with the file that this process owns, and with its disk; None where there is none."""
    condition = getattr(app.raw, "condition", None)
    if condition is None:
        return None
    return {
        "full": condition.is_full,
        "held": condition.held,
        "free_bytes": condition.free_bytes,
        "reserve_bytes": condition.reserve_bytes,
        "file_bytes": condition.file_bytes,
    }


def _not_ready(
    app: Application, queues: dict[str, dict[str, Any]], store: dict[str, Any] | None
) -> Iterator[str]:
    """Why no work should be sent here, for people; nothing where all is well."""
    outage = app.reachability.outage
    if outage is not None:
        yield outage.reason
    trouble = str(getattr(app.raw, "owner_trouble", ""))
    if trouble:
        yield trouble
    if not queues:
        yield "no task queue is served"
    for name, queue in queues.items():
        if not queue["polling"]:
            yield f"task queue {name!r} is not polled"
        if not queue["healthy"]:
            yield f"task queue {name!r}: too many of its threads hang in workflow code"
    if store is not None and store["full"]:
        yield store["held"] or "there is no room left on the disk of the file"


def _queue(app: Application, services: QueueServices) -> dict[str, Any]:
    active = [each for each in app.tables.of_queue(services.queue) if each.state is HandleState.ACTIVE]
    return {
        # A handle that waits for its worker to come back has polls out, and no loop that takes what they bring.
        "polling": any(_polls(record) for record in active if record.spare is None),
        "healthy": not services.lanes.too_many_stuck,
        "generation": max((record.generation for record in active), default=0),
        "open_activations": sum(len(record.runs.open) for record in active),
        "open_attempts": sum(len(record.attempts.open) for record in active),
        "lanes": [asdict(lane) for lane in services.lanes.status()],
        "parked": sum(len(counts.parked) for counts in services.lanes.counts()),
    }


def _polls(record: HandleRecord) -> bool:
    """Whether the handle is really polled: a poll is out, or what the last one brought is just being taken."""
    return all(line.in_flight or line.kept for line in record.lines())


def _is_task(path: str) -> bool:
    """There may be thousands of them: they are a number."""
    return path.startswith(("Application/EvaluatorSupervisor/", "Application/ExecutorSupervisor/"))


class StatusServer:
    """Answers `/live`, `/ready`, `/status` and, with a registry, `/metrics`."""

    def __init__(
        self, address: str, report: Callable[[], dict[str, Any]], registry: Registry | None = None
    ) -> None:
        host, _, port = str(address).rpartition(":")
        if not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise UsageError(f"status_address must be host:port, such as 127.0.0.1:8080, not {address!r}")
        self._host = host.strip("[]") or "127.0.0.1"
        self._port = int(port)
        self._bound_to_loopback = is_loopback(self._host)
        named = os.environ.get(ALLOWED_HOSTS, "").split(",")
        self._allowed = frozenset(each.strip().lower() for each in named if each.strip())
        self._report = report
        self._registry = registry
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens; with the real port where port 0 was asked for."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        sockets = () if self._server is None else self._server.sockets
        return f"{host}:{sockets[0].getsockname()[1] if sockets else self._port}"

    async def start(self) -> None:
        """Begin to answer. On the control loop."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_LIMIT)
        except OSError as error:
            raise UsageError(
                f"the status endpoint cannot listen on {self.address}: {error.strerror or error}"
            ) from None
        logger.info("status on http://%s/status", self.address)

    async def stop(self) -> None:
        """Answer no more."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                request = (await reader.readline()).decode("latin-1").split()
                hosts = []
                while line := (await reader.readline()).decode("latin-1").strip():
                    name, _, value = line.partition(":")
                    if name.strip().lower() == "host":
                        hosts.append(value.strip())
                writer.write(self._answer(request) if self._is_meant(hosts) else _MISDIRECTED)
                await writer.drain()
        except (TimeoutError, OSError, ValueError, asyncio.LimitOverrunError):
            pass  # a request that is malformed or late is not answered
        finally:
            writer.close()

    def _is_meant(self, hosts: list[str]) -> bool:
        """Whether a request says a name of ours, or none.

        A page in a browser on this machine can reach a loopback port under a name of its own that leads here (DNS rebinding);
        what it then says as `Host` is that name. Bound to an address of the network, others reach it anyway, under any name.
        """
        if not self._bound_to_loopback:
            return True
        return all(_host_of(each) in self._allowed or is_loopback(_host_of(each)) for each in hosts)

    def _answer(self, request: list[str]) -> bytes:
        if len(request) != 3 or not request[2].startswith("HTTP/"):
            return _response(400, {"error": "this is not HTTP"})
        if request[0] not in ("GET", "HEAD"):
            return _response(405, {"error": "only GET"})
        try:
            response = self._page(request[1].partition("?")[0])
        except Exception as error:
            logger.exception("the status could not be told")
            response = _response(500, {"error": type(error).__name__})
        return response if request[0] == "GET" else response[: response.index(_END_OF_HEAD) + 4]

    def _page(self, path: str) -> bytes:
        if path == "/metrics" and self._registry is not None:
            return _answer(200, prometheus_text(self._registry.collect()).encode(), CONTENT_TYPE)
        report = self._report()
        match path:
            case "/live":
                return _response(200 if report["alive"] else 503, {"alive": report["alive"]})
            case "/ready":
                if report["ready"]:
                    return _response(200, {"ready": True})
                return _response(503, {"ready": False, "reasons": report["reasons"]})
            case "/status":
                return _response(200, report)
            case _:
                return _response(404, {"error": "there are /live, /ready, /status and /metrics"})


def _host_of(header: str) -> str:
    """The name in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _response(code: int, document: dict[str, Any]) -> bytes:
    return _answer(code, json.dumps(document, indent=1).encode(), "application/json")


def _answer(code: int, body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


_MISDIRECTED = _response(
    421, {"error": f"this endpoint is on loopback and is not called so; {ALLOWED_HOSTS} allows more names"}
)


# --- metrics ------------------------------------------------------------------------------------------------
#
# Read when a registry is collected, in any thread: nothing is counted twice, or on the way of work. What was counted by queues
# that are no longer served is gone with them.

Read = Callable[[Application, QueueServices], float]


def _sum(read: Callable[[Counts], float]) -> Read:
    return lambda app, services: sum(map(read, services.lanes.counts()))


def _polls_out(app: Application, services: QueueServices) -> float:
    active = [each for each in app.tables.of_queue(services.queue) if each.state is HandleState.ACTIVE]
    return sum(bool(line.in_flight) for each in active for line in each.lines())


def _open_tasks(app: Application, services: QueueServices) -> float:
    return sum(len(each.runs.open) for each in app.tables.of_queue(services.queue))


# Name, kind, what it says, how it is read.
_OF_A_QUEUE: tuple[tuple[str, Kind, str, Read], ...] = (
    (
        "hourglass_workflow_tasks",
        "counter",
        "Workflow tasks that were executed.",
        _sum(lambda each: each.activations),
    ),
    (
        "hourglass_workflow_tasks_failed",
        "counter",
        "Workflow tasks that failed, and are tried again.",
        _sum(lambda each: each.failed_tasks),
    ),
    ("hourglass_workflow_tasks_open", "gauge", "Workflow tasks that are in hand.", _open_tasks),
    (
        "hourglass_cache_misses",
        "counter",
        "Workflow tasks for runs that were not in the cache.",
        _sum(lambda each: each.misses),
    ),
    ("hourglass_cached_workflows", "gauge", "Runs whose state is kept.", _sum(lambda each: each.cached)),
    ("hourglass_live_workflows", "gauge", "Runs whose fibers are kept.", _sum(lambda each: each.live)),
    (
        "hourglass_parked_workflows",
        "gauge",
        "Runs whose code raised a bug, and that wait for a fix.",
        _sum(lambda each: len(each.parked)),
    ),
    (
        "hourglass_stuck_lanes",
        "gauge",
        "Threads that hang in workflow code.",
        lambda _, each: each.lanes.stuck,
    ),
    (
        "hourglass_replaced_lanes",
        "counter",
        "Threads of workflow code that hung and were replaced.",
        lambda _, services: sum(each.replaced for each in services.lanes.status()),
    ),
    (
        "hourglass_running_activities",
        "gauge",
        "Attempts of activities that are in hand.",
        lambda _, each: each.executor.running,
    ),
    (
        "hourglass_lost_threads",
        "gauge",
        "Threads that hang in activities that were given up.",
        lambda _, each: each.executor.statistics().lost_threads,
    ),
    ("hourglass_polls", "gauge", "Polls that are out.", _polls_out),
)


class _Seen(NamedTuple):
    """What the other metrics are read from, each time that a registry is collected."""

    app: Application
    namespace: dict[str, str]
    queues: Sequence[tuple[QueueServices, Labels]]
    condition: Any
    """Of the file that this process owns, where there is one."""
    figures: EngineFigures | None
    """Of an engine that this process owns."""


def _closed(seen: _Seen) -> Iterator[Sample]:
    for services, labels in seen.queues:
        totals: dict[tuple[str, str], int] = {}
        for counts in services.lanes.counts():
            for key, count in list(counts.closed.items()):
                totals[key] = totals.get(key, 0) + count
        for (workflow_type, status), count in totals.items():
            names = (("status", status), ("workflow_type", workflow_type))
            yield Sample(tuple(sorted((*labels, *names))), count)


def _handles(seen: _Seen) -> Iterator[Sample]:
    for event, count in asdict(seen.app.tables.counters).items():
        yield Sample(labels_of({**seen.namespace, "event": event}), count)


def _waiting(read: Callable[[QueueStats], float]) -> Callable[[_Seen], Iterator[Sample]]:
    def samples(seen: _Seen) -> Iterator[Sample]:
        for queue, stats in () if seen.figures is None else seen.figures.queues.items():
            for kind, one in zip(("workflow", "activity"), stats, strict=True):
                yield Sample(labels_of({**seen.namespace, "task_queue": queue, "kind": kind}), read(one))

    return samples


def _of_file(read: Callable[[Any], float]) -> Callable[[_Seen], float | None]:
    return lambda seen: None if seen.condition is None else read(seen.condition)


# The same for what has labels of its own; read as samples.
_BY_LABEL: tuple[tuple[str, Kind, str, Callable[[_Seen], Iterable[Sample]]], ...] = (
    ("hourglass_workflows_closed", "counter", "Runs that closed here, by how.", _closed),
    (
        "hourglass_handle_events",
        "counter",
        "What happened to the handles on the engine and to the answers given to them, by event.",
        _handles,
    ),
    (
        "hourglass_task_queue_backlog",
        "gauge",
        "Tasks that wait on a queue for a worker, by kind (workflow, activity).",
        _waiting(lambda stats: stats.backlog),
    ),
    (
        "hourglass_task_queue_oldest_seconds",
        "gauge",
        "How long the oldest of them has waited.",
        _waiting(lambda stats: stats.age),
    ),
)

# The same for what a process has one of; None where there is nothing to tell.
_OF_THE_PROCESS: tuple[tuple[str, Kind, str, Callable[[_Seen], float | None]], ...] = (
    (
        "hourglass_restarts",
        "counter",
        "Restarts in the supervision tree.",
        lambda seen: seen.app.restarts,
    ),
    (
        "hourglass_store_bytes",
        "gauge",
        "Size of the file that this process owns, with its log.",
        _of_file(lambda file: file.file_bytes),
    ),
    (
        "hourglass_open_workflows",
        "gauge",
        "Runs that are open, of an engine that this process owns.",
        lambda seen: None if seen.figures is None else seen.figures.open_runs,
    ),
    (
        "hourglass_store_free_bytes",
        "gauge",
        "Free room on the disk of the file that this process owns.",
        _of_file(lambda file: file.free_bytes),
    ),
    (
        "hourglass_store_held",
        "gauge",
        "Whether the file cannot be written at present (1), as on a full disk.",
        _of_file(lambda file: bool(file.held)),
    ),
    (
        "hourglass_engine_reachable",
        "gauge",
        "1 while the engine answers and serves our namespace, else 0.",
        lambda seen: seen.app.reachability.outage is None,
    ),
)


def described() -> list[tuple[str, Kind, str]]:
    """Name, kind and text of all that `worker_metrics` gives."""
    return [each[:3] for each in (*_OF_A_QUEUE, *_BY_LABEL, *_OF_THE_PROCESS)]


def worker_metrics(app: Application) -> list[Family]:
    """The metrics of every queue that an Application serves, and of its tree."""
    namespace = {"namespace": app.raw.namespace}
    queues = [
        (services, labels_of({**namespace, "task_queue": services.queue})) for services in app.configured()
    ]
    seen = _Seen(
        app, namespace, queues, getattr(app.raw, "condition", None), getattr(app.raw, "figures", None)
    )
    families = [
        Family(name, kind, text, samples=tuple(Sample(labels, read(app, each)) for each, labels in queues))
        for name, kind, text, read in _OF_A_QUEUE
    ]
    for name, kind, text, samples in _BY_LABEL:
        families.append(Family(name, kind, text, samples=tuple(samples(seen))))
    for name, kind, text, value_of in _OF_THE_PROCESS:
        value = value_of(seen)
        found = () if value is None else (Sample(labels_of(namespace), float(value)),)
        families.append(Family(name, kind, text, samples=found))
    # What an engine below us counts itself: Temporal's Core.
    return [*families, *getattr(app.raw, "families", tuple)()]
