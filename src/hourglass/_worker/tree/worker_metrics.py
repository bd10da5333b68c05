"""The metrics of a worker: of its task queues, of its process and of the engine.

Values are read when a registry is collected, in any thread, so that nothing is counted twice and tasks are not slowed
down. The counts of a queue disappear when the queue is no longer served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

from hourglass._contract.engine_status import DiskCondition, EngineStatus, QueueStats
from hourglass._worker.handles.life import HandleState
from hourglass._worker.lanes.counts import Counts
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.services import QueueServices
from hourglass.metrics import Family, Kind, Sample
from hourglass.metrics._samples import Labels, labels_of

Read = Callable[[Application, QueueServices], float]


def _sum(read: Callable[[Counts], float]) -> Read:
    return lambda app, services: sum(map(read, services.lanes.counts()))


def _polls_out(app: Application, services: QueueServices) -> float:
    active = [record for record in app.tables.of_queue(services.queue) if record.state is HandleState.ACTIVE]
    return sum(inbox.is_open for record in active for inbox in record.inboxes())


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
        lambda _, services: services.executor.runner.statistics().lost_threads,
    ),
    ("hourglass_polls", "gauge", "Outstanding polls.", _polls_out),
)


class _Sources(NamedTuple):
    """The sources of the other metrics, for one collection."""

    app: Application
    namespace: dict[str, str]
    queues: Sequence[tuple[QueueServices, Labels]]
    engine: EngineStatus


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
    """Yield the number of parked runs of each task queue. For a file only the owner reports the number, so that the sum
    over all processes is the number of runs.
    """
    if sources.engine.role and sources.engine.figures is None:
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
        for queue, stats in () if sources.engine.figures is None else sources.engine.figures.queues.items():
            for kind, queue_stats in zip(("workflow", "activity"), stats, strict=True):
                yield Sample(
                    labels_of({**sources.namespace, "task_queue": queue, "kind": kind}), read(queue_stats)
                )

    return samples


def _file_value(read: Callable[[DiskCondition], float | None]) -> Callable[[_Sources], float | None]:
    return lambda sources: None if sources.engine.disk is None else read(sources.engine.disk)


# Metrics with additional labels: the function yields the samples.
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
        _backlog_samples(lambda stats: stats.backlog_age),
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
        "Size of the file that this process owns, including its WAL.",
        _file_value(lambda file: file.file_bytes),
    ),
    (
        "hourglass_open_workflows",
        "gauge",
        "Open runs of the engine that this process owns.",
        lambda sources: None if sources.engine.figures is None else sources.engine.figures.open_runs,
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
    sources = _Sources(app, namespace, queues, app.raw.status())
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
    return [*families, *app.raw.metrics()]
