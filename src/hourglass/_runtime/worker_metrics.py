"""What a worker says of itself as metrics, read when a registry is collected: nothing is counted twice, or on the way
of work.

May be called in any thread. What was counted by queues that are no longer served is gone with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hourglass._bridge.handles import HandleState
from hourglass._runtime.application import Application
from hourglass._runtime.services import QueueServices
from hourglass.metrics import Family, Kind, Sample
from hourglass.metrics._samples import Labels, labels_of

Read = Callable[[Application, QueueServices], float]


def _tasks(app: Application, services: QueueServices) -> float:
    return sum(each.activations for each in services.lanes.counts())


def _failed(app: Application, services: QueueServices) -> float:
    return sum(each.failed_tasks for each in services.lanes.counts())


def _misses(app: Application, services: QueueServices) -> float:
    return sum(each.misses for each in services.lanes.counts())


def _cached(app: Application, services: QueueServices) -> float:
    return sum(each.cached for each in services.lanes.counts())


def _live(app: Application, services: QueueServices) -> float:
    return sum(each.live for each in services.lanes.counts())


def _parked(app: Application, services: QueueServices) -> float:
    return sum(len(each.parked) for each in services.lanes.counts())


def _stuck(app: Application, services: QueueServices) -> float:
    return services.lanes.stuck


def _replaced(app: Application, services: QueueServices) -> float:
    return sum(each.replaced for each in services.lanes.status())


def _open_tasks(app: Application, services: QueueServices) -> float:
    return sum(len(each.runs.open) for each in app.tables.of_queue(services.queue))


def _running(app: Application, services: QueueServices) -> float:
    return services.executor.running


def _lost(app: Application, services: QueueServices) -> float:
    return services.executor.statistics().lost_threads


def _polls(app: Application, services: QueueServices) -> float:
    active = [each for each in app.tables.of_queue(services.queue) if each.state is HandleState.ACTIVE]
    return sum(bool(line.in_flight) for each in active for line in each.lines())


# Name, kind, what it says, how it is read.
_OF_A_QUEUE: tuple[tuple[str, Kind, str, Read], ...] = (
    ("hourglass_workflow_tasks", "counter", "Workflow tasks that were executed.", _tasks),
    (
        "hourglass_workflow_tasks_failed",
        "counter",
        "Workflow tasks that failed, and are tried again.",
        _failed,
    ),
    ("hourglass_workflow_tasks_open", "gauge", "Workflow tasks that are in hand.", _open_tasks),
    ("hourglass_cache_misses", "counter", "Workflow tasks for runs that were not in the cache.", _misses),
    ("hourglass_cached_workflows", "gauge", "Runs whose state is kept.", _cached),
    ("hourglass_live_workflows", "gauge", "Runs whose fibers are kept.", _live),
    (
        "hourglass_parked_workflows",
        "gauge",
        "Runs whose code raised a bug, and that wait for a fix.",
        _parked,
    ),
    ("hourglass_stuck_lanes", "gauge", "Threads that hang in workflow code.", _stuck),
    (
        "hourglass_replaced_lanes",
        "counter",
        "Threads of workflow code that hung and were replaced.",
        _replaced,
    ),
    ("hourglass_running_activities", "gauge", "Attempts of activities that are in hand.", _running),
    ("hourglass_lost_threads", "gauge", "Threads that hang in activities that were given up.", _lost),
    ("hourglass_polls", "gauge", "Polls that are out.", _polls),
)


_CLOSED = "hourglass_workflows_closed", "Runs that closed here, by how."
_RESTARTS = "hourglass_restarts", "Restarts in the supervision tree."
_FREE = "hourglass_store_free_bytes", "Free room on the disk of the file that this process owns."
_HELD = "hourglass_store_held", "Whether the file cannot be written at present (1), as on a full disk."
_REACHABLE = "hourglass_engine_reachable", "1 while the engine answers and serves our namespace, else 0."


def described() -> list[tuple[str, Kind, str]]:
    """Name, kind and text of all that `worker_metrics` gives."""
    ours: list[tuple[str, Kind, str]] = [(name, kind, text) for name, kind, text, _ in _OF_A_QUEUE]
    return [
        *ours,
        (_CLOSED[0], "counter", _CLOSED[1]),
        (_RESTARTS[0], "counter", _RESTARTS[1]),
        (_FREE[0], "gauge", _FREE[1]),
        (_HELD[0], "gauge", _HELD[1]),
        (_REACHABLE[0], "gauge", _REACHABLE[1]),
    ]


def worker_metrics(app: Application) -> list[Family]:
    """The metrics of every queue that an Application serves, and of its tree."""
    namespace = {"namespace": app.raw.namespace}
    queues = [
        (services, labels_of({**namespace, "task_queue": services.queue})) for services in app.configured()
    ]
    found = [
        Family(name, kind, text, samples=tuple(Sample(labels, read(app, each)) for each, labels in queues))
        for name, kind, text, read in _OF_A_QUEUE
    ]
    return [
        *found,
        _closed(queues),
        Family(
            _RESTARTS[0],
            "counter",
            _RESTARTS[1],
            samples=(Sample(labels_of(namespace), app.restarts),),
        ),
        *_store(app, labels_of(namespace)),
        Family(
            _REACHABLE[0],
            "gauge",
            _REACHABLE[1],
            samples=(Sample(labels_of(namespace), float(app.reachability.outage is None)),),
        ),
    ]


def _store(app: Application, labels: Labels) -> Iterator[Family]:
    condition = getattr(app.raw, "condition", None)
    free = None if condition is None else condition.free_bytes
    samples = () if free is None else (Sample(labels, free),)
    yield Family(_FREE[0], "gauge", _FREE[1], samples=samples)
    held = () if condition is None else (Sample(labels, float(bool(condition.held))),)
    yield Family(_HELD[0], "gauge", _HELD[1], samples=held)


def _closed(queues: Iterable[tuple[QueueServices, Labels]]) -> Family:
    def samples() -> Iterator[Sample]:
        for services, labels in queues:
            totals: dict[tuple[str, str], int] = {}
            for counts in services.lanes.counts():
                for key, count in list(counts.closed.items()):
                    totals[key] = totals.get(key, 0) + count
            for (workflow_type, status), count in totals.items():
                names = (("status", status), ("workflow_type", workflow_type))
                yield Sample(tuple(sorted((*labels, *names))), count)

    return Family(_CLOSED[0], "counter", _CLOSED[1], samples=tuple(samples()))
