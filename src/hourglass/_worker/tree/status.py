"""A worker's state over HTTP, from the actual supervision tree: `/live`, `/ready`, `/status`, `/metrics`; and its
metrics.

Opt-in, on loopback by default. Runs on the control loop: no user code, only GET. Liveness and readiness are public;
everything else needs a token.
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
"""Host names, separated by commas, that a status endpoint on loopback accepts in addition to those of this machine."""

TOKEN = "HOURGLASS_STATUS_TOKEN"
"""The environment variable with the token for `/status` and `/metrics`, or `@` and the path of a file with the token."""

OPEN = "none"
"""The value of `HOURGLASS_STATUS_TOKEN` that allows access without a token."""


def status_report(app: Application, state: str) -> dict[str, Any]:
    """Return the state of an Application as JSON data, without payloads and workflow ids."""
    tree = app.tree
    queues = {services.queue: _queue(app, services) for services in app.configured()}
    store = store_report(app)
    reasons = list(_not_ready(app, queues, store))
    return {
        "state": state,
        # Only for a file: whether this process owns it or works for the owner, and all processes that work on it.
        "engine": str(getattr(app.raw, "standing", "")),
        "processes": [_process(process) for process in worker_processes(app)],
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


def worker_processes(app: Application) -> tuple[WorkerProcess, ...]:
    """Return the processes that work on the same file; empty if the engine is a server or in memory."""
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
    """Return the condition of the file that this process owns, and of its disk; None if it owns none."""
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
    """Yield the reasons, for people, why no work should be sent to this worker; none if it is ready."""
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
        yield store["held"] or "there is no space left on the disk of the file"


def _queue(app: Application, services: QueueServices) -> dict[str, Any]:
    active = [record for record in app.tables.of_queue(services.queue) if record.state is HandleState.ACTIVE]
    return {
        # A handle that waits for its worker's restart has polls outstanding, but no loop that receives their results.
        "polling": any(_polls(record) for record in active if record.spare is None),
        "healthy": not services.lanes.too_many_stuck,
        "trouble": services.executor.trouble,
        "generation": max((record.generation for record in active), default=0),
        "open_activations": sum(len(record.runs.open) for record in active),
        "open_attempts": sum(len(record.attempts.open) for record in active),
        "lanes": [asdict(lane) for lane in services.lanes.status()],
        "parked": app.parked.count(services.queue, len(services.lanes.parked.reasons)),
    }


def _polls(record: HandleRecord) -> bool:
    """Whether the handle is being polled: a poll is outstanding, or its result is about to be received."""
    return all(line.in_flight or line.kept for line in record.lines())


def _is_task(path: str) -> bool:
    """Whether this is one of the tasks, of which there may be thousands: only their number is reported."""
    return path.startswith(("Application/EvaluatorSupervisor/", "Application/ExecutorSupervisor/"))


class StatusServer:
    """Serves `/live`, `/ready`, `/status` and, with a registry, `/metrics`.

    `/live` and `/ready` answer yes or no to everybody. Details (reasons, names of queues and workflow types, processes)
    need the token of the environment variable `HOURGLASS_STATUS_TOKEN`.
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
        """The address on which it listens; port 0 is replaced by the real port."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._server.port or self._port}"

    async def start(self) -> None:
        """Start to serve, on the control loop. Raises `UsageError` if the address is not available."""
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
        """Stop serving."""
        await self._server.stop()

    def _check(self, request: HttpRequest) -> HttpResponse | int:
        """Reject a request for another host, or one with another method than GET. Bodies are not read."""
        if not self._is_own_host(request.headers.get("host")):
            return _document(
                421,
                {
                    "error": f"this endpoint is on loopback and has another name; {ALLOWED_HOSTS} allows more names"
                },
            )
        if request.method not in ("GET", "HEAD"):
            return _document(405, {"error": "only GET"})
        return 0

    def _is_own_host(self, header: str | None) -> bool:
        """Whether the `Host` header is a name of this machine, or missing.

        A page in a browser on this machine can reach a loopback port under its own name that resolves to this machine
        (DNS rebinding); its `Host` is that name. An endpoint on a network address is reachable under any name anyway.
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
            Verdict.ADMITTED
            if self._access is None
            else self._access.check_request(request.headers, request.address)
        )
        is_admitted = verdict is Verdict.ADMITTED
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
                return _refused(verdict)
            case "/status":
                return _document(200, self._report())
            case "/metrics" if self._registry is not None:
                return HttpResponse(200, prometheus_text(self._registry.collect()).encode(), CONTENT_TYPE)
            case _:
                return _document(404, {"error": "there are /live, /ready, /status and /metrics"})


def _access(port: int) -> Access | None:
    """Return the token check; None if the endpoint is open. Without a configured token nobody has access."""
    configured = os.environ.get(TOKEN)
    if configured == OPEN:
        return None
    return Access(Credentials.create(read_token(configured, TOKEN)), port)


def _refused(verdict: Verdict) -> HttpResponse:
    if verdict is Verdict.LIMITED:
        return _document(429, {"error": "too many invalid tokens: wait a minute"}, ("Retry-After", "60"))
    message = (
        f"a token is needed, as 'Authorization: Bearer …': set {TOKEN} for the worker, to the token or to @FILE; "
        f"{TOKEN}={OPEN} shows everything to everybody who can connect"
    )
    return _document(401, {"error": message}, ("WWW-Authenticate", "Bearer"))


def _document(code: int, document: dict[str, Any], *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(code, json.dumps(document, indent=1).encode(), "application/json", headers)


#
# Values are read when a registry is collected, in any thread: nothing is counted twice, or during the work. Counts of
# queues that are no longer served disappear with them.

Read = Callable[[Application, QueueServices], float]


def _sum(read: Callable[[Counts], float]) -> Read:
    return lambda app, services: sum(map(read, services.lanes.counts()))


def _polls_out(app: Application, services: QueueServices) -> float:
    active = [record for record in app.tables.of_queue(services.queue) if record.state is HandleState.ACTIVE]
    return sum(bool(line.in_flight) for record in active for line in record.lines())


def _open_tasks(app: Application, services: QueueServices) -> float:
    return sum(len(record.runs.open) for record in app.tables.of_queue(services.queue))


# Name, kind, help text, and the function that reads the value.
_PER_QUEUE: tuple[tuple[str, Kind, str, Read], ...] = (
    (
        "hourglass_workflow_tasks",
        "counter",
        "Workflow tasks executed.",
        _sum(lambda counts: counts.activations),
    ),
    (
        "hourglass_workflow_tasks_failed",
        "counter",
        "Workflow tasks that failed and are retried.",
        _sum(lambda counts: counts.failed_tasks),
    ),
    ("hourglass_workflow_tasks_open", "gauge", "Workflow tasks in progress.", _open_tasks),
    (
        "hourglass_cache_misses",
        "counter",
        "Workflow tasks for runs that were not in the cache.",
        _sum(lambda counts: counts.misses),
    ),
    ("hourglass_cached_workflows", "gauge", "Runs with cached state.", _sum(lambda counts: counts.cached)),
    ("hourglass_live_workflows", "gauge", "Runs with live fibers.", _sum(lambda counts: counts.live)),
    (
        "hourglass_stuck_lanes",
        "gauge",
        "Lane threads that hang in workflow code.",
        lambda _, services: services.lanes.stuck,
    ),
    (
        "hourglass_replaced_lanes",
        "counter",
        "Lane threads that hung and were replaced.",
        lambda _, services: sum(lane.replaced for lane in services.lanes.status()),
    ),
    (
        "hourglass_running_activities",
        "gauge",
        "Activity attempts in progress.",
        lambda _, services: services.executor.running,
    ),
    (
        "hourglass_lost_threads",
        "gauge",
        "Threads that hang in abandoned activity attempts.",
        lambda _, services: services.executor.statistics().lost_threads,
    ),
    ("hourglass_polls", "gauge", "Outstanding polls.", _polls_out),
)


class _Sources(NamedTuple):
    """The sources of the other metrics, for one collection."""

    app: Application
    namespace: dict[str, str]
    queues: Sequence[tuple[QueueServices, Labels]]
    condition: Any
    """The condition of the file that this process owns, if any."""
    figures: EngineFigures | None
    """The figures of the engine that this process owns, if any."""


def _closed(sources: _Sources) -> Iterator[Sample]:
    for services, labels in sources.queues:
        totals: dict[tuple[str, str], int] = {}
        for counts in services.lanes.counts():
            for key, count in list(counts.closed.items()):
                totals[key] = totals.get(key, 0) + count
        for (workflow_type, status), count in totals.items():
            names = (("status", status), ("workflow_type", workflow_type))
            yield Sample(tuple(sorted((*labels, *names))), count)


def _parked(sources: _Sources) -> Iterator[Sample]:
    """Count parked runs. For a file only the owner reports, so that the sum over all processes is the number of runs."""
    if sources.figures is None and hasattr(sources.app.raw, "figures"):
        return
    remembered = {services.queue: len(services.lanes.parked.reasons) for services, _ in sources.queues}
    for queue in sorted({*remembered, *sources.app.parked.others}):
        count = sources.app.parked.count(queue, remembered.get(queue, 0))
        yield Sample(labels_of({**sources.namespace, "task_queue": queue}), count)


def _handles(sources: _Sources) -> Iterator[Sample]:
    for event, count in asdict(sources.app.tables.counters).items():
        yield Sample(labels_of({**sources.namespace, "event": event}), count)


def _backlog_samples(read: Callable[[QueueStats], float]) -> Callable[[_Sources], Iterator[Sample]]:
    def samples(sources: _Sources) -> Iterator[Sample]:
        for queue, stats in () if sources.figures is None else sources.figures.queues.items():
            for kind, queue_stats in zip(("workflow", "activity"), stats, strict=True):
                yield Sample(
                    labels_of({**sources.namespace, "task_queue": queue, "kind": kind}), read(queue_stats)
                )

    return samples


def _file_value(read: Callable[[Any], float]) -> Callable[[_Sources], float | None]:
    return lambda sources: None if sources.condition is None else read(sources.condition)


# Metrics with labels of their own: the function yields samples.
_LABELLED: tuple[tuple[str, Kind, str, Callable[[_Sources], Iterable[Sample]]], ...] = (
    ("hourglass_workflows_closed", "counter", "Runs closed by this worker, by status.", _closed),
    (
        "hourglass_parked_workflows",
        "gauge",
        "Open runs whose workflow tasks keep failing until their code is fixed, by task queue.",
        _parked,
    ),
    (
        "hourglass_handle_events",
        "counter",
        "Events of handles and of completions, by event.",
        _handles,
    ),
    (
        "hourglass_task_queue_backlog",
        "gauge",
        "Tasks in a queue's backlog, by kind (workflow, activity).",
        _backlog_samples(lambda stats: stats.backlog),
    ),
    (
        "hourglass_task_queue_oldest_seconds",
        "gauge",
        "Age of the oldest task in the backlog.",
        _backlog_samples(lambda stats: stats.age),
    ),
)

# Metrics of the process; the function returns None if there is no value.
_PER_PROCESS: tuple[tuple[str, Kind, str, Callable[[_Sources], float | None]], ...] = (
    (
        "hourglass_restarts",
        "counter",
        "Restarts in the supervision tree.",
        lambda sources: sources.app.restarts,
    ),
    (
        "hourglass_store_bytes",
        "gauge",
        "Size of the file that this process owns, including its log.",
        _file_value(lambda file: file.file_bytes),
    ),
    (
        "hourglass_open_workflows",
        "gauge",
        "Open runs of the engine that this process owns.",
        lambda sources: None if sources.figures is None else sources.figures.open_runs,
    ),
    (
        "hourglass_store_free_bytes",
        "gauge",
        "Free space on the disk of the file that this process owns.",
        _file_value(lambda file: file.free_bytes),
    ),
    (
        "hourglass_store_held",
        "gauge",
        "1 while the file cannot be written, for example on a full disk, else 0.",
        _file_value(lambda file: bool(file.held)),
    ),
    (
        "hourglass_engine_reachable",
        "gauge",
        "1 while the engine answers and serves the namespace, else 0.",
        lambda sources: sources.app.reachability.outage is None,
    ),
)


def described() -> list[tuple[str, Kind, str]]:
    """Return name, kind and help text of all metrics of `worker_metrics`."""
    return [metric[:3] for metric in (*_PER_QUEUE, *_LABELLED, *_PER_PROCESS)]


def worker_metrics(app: Application) -> list[Family]:
    """Return the metrics of every queue that an Application serves, and of its tree."""
    namespace = {"namespace": app.raw.namespace}
    queues = [
        (services, labels_of({**namespace, "task_queue": services.queue})) for services in app.configured()
    ]
    sources = _Sources(
        app, namespace, queues, getattr(app.raw, "condition", None), getattr(app.raw, "figures", None)
    )
    families = [
        Family(
            name,
            kind,
            text,
            samples=tuple(Sample(labels, read(app, services)) for services, labels in queues),
        )
        for name, kind, text, read in _PER_QUEUE
    ]
    for name, kind, text, samples in _LABELLED:
        families.append(Family(name, kind, text, samples=tuple(samples(sources))))
    for name, kind, text, value_of in _PER_PROCESS:
        value = value_of(sources)
        value_samples = () if value is None else (Sample(labels_of(namespace), float(value)),)
        families.append(Family(name, kind, text, samples=value_samples))
    # Metrics that an engine below us counts itself: Temporal's Core.
    return [*families, *getattr(app.raw, "families", tuple)()]
