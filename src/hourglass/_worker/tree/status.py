"""What a worker tells of itself over HTTP, from the tree's real state: `/live`, `/ready`, `/status`, `/metrics`; its metrics.

Opt-in, on loopback unless told otherwise. On the control loop: no user code, nothing but GET. Whether the worker is alive and
ready is public; all else needs a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from hourglass._contract.deployments import QueueStats, WorkerProcess
from hourglass._http.access import Access, Credentials, Verdict, read_token
from hourglass._http.names import host_only
from hourglass._http.server import HttpRequest, HttpResponse, HttpServer, listening_socket
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.life import HandleState
from hourglass._worker.lanes.evaluation import Counts
from hourglass._worker.targets import is_loopback
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.services import QueueServices
from hourglass.errors import UsageError
from hourglass.metrics import Family, Kind, Registry, Sample, prometheus_text
from hourglass.metrics._samples import CONTENT_TYPE, Labels, labels_of

if TYPE_CHECKING:
    from hourglass._embedded.engine import EngineFigures

logger = logging.getLogger("hourglass.worker")

_RECENT = 20

ALLOWED_HOSTS = "HOURGLASS_STATUS_HOSTS"
"""Names, with commas between them, under which a status endpoint on loopback may be asked besides those of this machine."""

TOKEN = "HOURGLASS_STATUS_TOKEN"
"""The token for `/status` and `/metrics`, or `@` and the file that holds it."""

OPEN = "none"
"""The value of `HOURGLASS_STATUS_TOKEN` that shows them without a token."""


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
        if queue["trouble"]:
            yield f"task queue {name!r}: {queue['trouble']}"
    if store is not None and store["full"]:
        yield store["held"] or "there is no room left on the disk of the file"


def _queue(app: Application, services: QueueServices) -> dict[str, Any]:
    active = [each for each in app.tables.of_queue(services.queue) if each.state is HandleState.ACTIVE]
    return {
        # A handle that waits for its worker to come back has polls out, and no loop that takes what they bring.
        "polling": any(_polls(record) for record in active if record.spare is None),
        "healthy": not services.lanes.too_many_stuck,
        "trouble": services.executor.trouble,
        "generation": max((record.generation for record in active), default=0),
        "open_activations": sum(len(record.runs.open) for record in active),
        "open_attempts": sum(len(record.attempts.open) for record in active),
        "lanes": [asdict(lane) for lane in services.lanes.status()],
        "parked": app.parked.of(services.queue, len(services.lanes.parked.reasons)),
    }


def _polls(record: HandleRecord) -> bool:
    """Whether the handle takes new work, or items that it has delivered are just being dispatched."""
    return all(inbox.is_open or inbox.kept for inbox in record.inboxes())


def _is_task(path: str) -> bool:
    """There may be thousands of them: they are a number."""
    return path.startswith(("Application/EvaluatorSupervisor/", "Application/ExecutorSupervisor/"))


class StatusServer:
    """Answers `/live`, `/ready`, `/status` and, with a registry, `/metrics`.

    `/live` and `/ready` say yes or no to everybody. What shows more, reasons, names of queues and workflow types, processes,
    needs the token of the variable `HOURGLASS_STATUS_TOKEN`.
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
        """Where it listens; with the real port where port 0 was asked for."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._server.port or self._port}"

    async def start(self) -> None:
        """Begin to answer. On the control loop."""
        loop = asyncio.get_running_loop()
        try:
            # On a thread, because the host may be a name that has to be resolved.
            listening = await loop.run_in_executor(None, listening_socket, self._host, self._port)
            await self._server.start(listening)
        except OSError as error:
            raise UsageError(
                f"the status endpoint cannot listen on {self.address}: {error.strerror or error}"
            ) from None
        logger.info("status on http://%s/status", self.address)

    async def stop(self) -> None:
        """Answer no more."""
        await self._server.stop()

    def _check(self, request: HttpRequest) -> HttpResponse | int:
        """Refuse a request for another host, and one that would change something. Bodies are not read."""
        if not self._is_own_host(request.headers.get("host")):
            return _document(
                421,
                {"error": f"this endpoint is on loopback and has another name; {ALLOWED_HOSTS} allows more"},
            )
        if request.method not in ("GET", "HEAD"):
            return _document(405, {"error": "only GET"})
        return 0

    def _is_own_host(self, header: str | None) -> bool:
        """Whether the header `Host` is a name of this machine, or missing.

        A page in a browser on this machine can reach a loopback port under a name of its own that leads here (DNS rebinding);
        its `Host` is that name. Bound to an address of the network, others reach it anyway, under any name.
        """
        if not self._bound_to_loopback or header is None:
            return True
        name = host_only(header)
        return name in self._allowed or is_loopback(name)

    async def _answer(self, request: HttpRequest, body: bytes) -> HttpResponse:
        try:
            return self._page(request)
        except Exception as error:
            logger.exception("the status could not be told")
            return _document(500, {"error": type(error).__name__})

    def _page(self, request: HttpRequest) -> HttpResponse:
        verdict = (
            Verdict.ADMITTED
            if self._access is None
            else self._access.check_request(request.headers, request.address)
        )
        admitted = verdict is Verdict.ADMITTED
        match request.path:
            case "/live":
                alive = self._report()["alive"]
                return _document(200 if alive else 503, {"alive": alive})
            case "/ready":
                report = self._report()
                if report["ready"]:
                    return _document(200, {"ready": True})
                reasons = {"reasons": report["reasons"]} if admitted else {}
                return _document(503, {"ready": False, **reasons})
            case "/status" | "/metrics" if not admitted:
                return _refused(verdict)
            case "/status":
                return _document(200, self._report())
            case "/metrics" if self._registry is not None:
                return HttpResponse(200, prometheus_text(self._registry.collect()).encode(), CONTENT_TYPE)
            case _:
                return _document(404, {"error": "there are /live, /ready, /status and /metrics"})


def _access(port: int) -> Access | None:
    """Return what checks the token; None where the endpoint is open. Without a token in the environment nobody has it."""
    value = os.environ.get(TOKEN)
    if value == OPEN:
        return None
    return Access(Credentials.create(read_token(value, TOKEN)), port)


def _refused(verdict: Verdict) -> HttpResponse:
    if verdict is Verdict.LIMITED:
        return _document(429, {"error": "too many wrong tokens: wait a minute"}, ("Retry-After", "60"))
    message = (
        f"a token is needed, as 'Authorization: Bearer …': set {TOKEN} for the worker, to the token or to @FILE; "
        f"{TOKEN}={OPEN} shows everything to everybody who can connect"
    )
    return _document(401, {"error": message}, ("WWW-Authenticate", "Bearer"))


def _document(code: int, document: dict[str, Any], *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(code, json.dumps(document, indent=1).encode(), "application/json", headers)


# --- metrics ------------------------------------------------------------------------------------------------
#
# Read when a registry is collected, in any thread: nothing is counted twice, or on the way of work. What was counted by queues
# that are no longer served is gone with them.

Read = Callable[[Application, QueueServices], float]


def _sum(read: Callable[[Counts], float]) -> Read:
    return lambda app, services: sum(map(read, services.lanes.counts()))


def _polls_out(app: Application, services: QueueServices) -> float:
    active = [each for each in app.tables.of_queue(services.queue) if each.state is HandleState.ACTIVE]
    return sum(inbox.is_open for record in active for inbox in record.inboxes())


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


def _parked(seen: _Seen) -> Iterator[Sample]:
    """Of a file only the process that has the engine tells: the sum over all processes is the number of runs."""
    if seen.figures is None and hasattr(seen.app.raw, "figures"):
        return
    remembered = {services.queue: len(services.lanes.parked.reasons) for services, _ in seen.queues}
    for queue in sorted({*remembered, *seen.app.parked.others}):
        count = seen.app.parked.of(queue, remembered.get(queue, 0))
        yield Sample(labels_of({**seen.namespace, "task_queue": queue}), count)


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
        "hourglass_parked_workflows",
        "gauge",
        "Open runs whose code fails and is retried until it is mended, by task queue.",
        _parked,
    ),
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
