"""The states of a `Worker`, its stop signals (Ctrl-C and SIGTERM), its statistics, and the tree that it belongs to.

Must not know: the steps of starting a worker. Queries of the tree block, because they run on the control loop.
Statistics may be read from any thread without blocking.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from hourglass._contract.engine_status import WorkerProcess
from hourglass._contract.handle import HandleConfig
from hourglass._supervision import Tree
from hourglass._worker.portal import Portal
from hourglass._worker.stop_event import StopEvent
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.plan import Plan
from hourglass._worker.tree.services import QueueServices
from hourglass._worker.tree.status import StatusServer, status_report
from hourglass.errors import UsageError

State: TypeAlias = Literal["new", "starting", "running", "stopping", "stopped"]


class WorkerLife:
    """The state of a worker: new → starting → running → stopping → stopped, and from there back to starting.

    Any thread may start the worker and shut it down. Each transition is atomic: of two concurrent transitions, one
    wins. `over` is set at the end of a shutdown or by a signal, and cleared by the next start.
    """

    def __init__(self) -> None:
        self.state: State = "new"
        self.over = StopEvent()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Mark the worker as starting. Raises `UsageError` if the worker is starting, running or stopping."""
        with self._lock:
            if self.state not in ("new", "stopped"):
                raise UsageError(f"this worker is already {self.state}")
            self.state = "starting"
            self.over.clear()

    def check_wanted(self) -> None:
        """Raise `UsageError` if the worker was shut down while it was starting."""
        if self.state != "starting":
            raise UsageError("this worker was shut down while it was starting")

    def started(self) -> bool:
        """Mark the worker as running. Return False if it was shut down meanwhile."""
        with self._lock:
            if self.state != "starting":
                return False
            self.state = "running"
            return True

    def failed(self) -> None:
        """Mark the worker as stopped because its start failed."""
        with self._lock:
            if self.state == "starting":
                self.state = "stopped"

    def stop(self) -> State | None:
        """Mark the worker as stopping. Return its former state; None if there is nothing to stop."""
        with self._lock:
            if self.state not in ("starting", "running"):
                return None
            former, self.state = self.state, "stopping"
            return former

    def stopped(self) -> None:
        with self._lock:
            self.state = "stopped"
        self.over.set()


logger = logging.getLogger("hourglass.worker")


class StopSignals:
    """The signal handlers of a worker that runs on the main thread. The first SIGINT or SIGTERM shuts the worker down,
    a second signal acts as usual.

    On any other thread no handler is installed: Python sets signal handlers on the main thread only.
    """

    def __init__(self, over: threading.Event) -> None:
        self._over = over
        self._former_handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former_handlers[number] = signal.signal(number, self._stop)

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _stop(self, number: int, _: object) -> None:
        logger.info("%s: shutting down", signal.Signals(number).name)
        self._over.set()  # first, so that code interrupted by the next signal sees that it is the second
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)
        self._former_handlers.clear()


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WorkerStatistics:
    """A snapshot of a worker's figures.

    `parked` maps the id of each parked run to the kind of the error and its location. `restarts` counts the restarts of
    the whole tree, which the workers of one client share.
    """

    task_queue: str
    state: State
    cached_workflows: int = 0
    live_workflows: int = 0
    parked: dict[str, str] = field(default_factory=dict)
    activations: int = 0
    failed_tasks: int = 0
    cache_misses: int = 0
    open_activations: int = 0
    running_activities: int = 0
    stuck_lanes: int = 0
    restarts: int = 0
    lanes: int = 0
    cache_size: int = 0
    """Maximum number of cached workflows."""
    workflow_slots: int = 0
    """Maximum number of concurrent workflow tasks, of which `open_activations` are in progress."""
    activity_slots: int = 0
    """Maximum number of concurrent activities, of which `running_activities` are in progress."""


def worker_statistics(
    task_queue: str, state: State, app: Application | None, services: Sequence[QueueServices]
) -> WorkerStatistics:
    """Return a worker's statistics. Safe on any thread: data that may change concurrently is copied in one step."""
    if app is None or not services:
        return WorkerStatistics(task_queue=task_queue, state=state)
    counts = [lane_counts for queue_services in services for lane_counts in queue_services.lanes.counts()]
    queues = {queue_services.queue for queue_services in services}
    handles = [record for record in list(app.tables.records.values()) if record.queue in queues]
    return WorkerStatistics(
        task_queue=task_queue,
        state=state,
        cached_workflows=sum(lane.cached for lane in counts),
        live_workflows=sum(lane.live for lane in counts),
        parked={run: reason for lane in counts for run, reason in list(lane.parked.items())},
        activations=sum(lane.activations for lane in counts),
        failed_tasks=sum(lane.failed_tasks for lane in counts),
        cache_misses=sum(lane.misses for lane in counts),
        open_activations=sum(len(record.runs.open) for record in handles),
        running_activities=sum(queue.executor.running for queue in services),
        stuck_lanes=sum(queue.lanes.stuck for queue in services),
        restarts=app.restarts,
        lanes=sum(queue.plan.lanes for queue in services),
        cache_size=sum(_cache_size(queue.plan.config) for queue in services),
        workflow_slots=sum(queue.plan.config.max_concurrent_workflow_tasks for queue in services),
        activity_slots=sum(queue.plan.config.max_concurrent_activities for queue in services),
    )


def _cache_size(config: HandleConfig) -> int:
    return max(config.max_cached_workflows, config.max_busy_workflows)


class WorkerTree:
    """The supervision tree of a worker: its processes and their states. `kill` ends any of these processes.

    If the engine is a file, the tree also lists the operating system processes that use the file.
    """

    def __init__(
        self, portal: Portal, tree: Callable[[], Tree], workers: Callable[[], tuple[WorkerProcess, ...]]
    ) -> None:
        self._portal = portal
        self._tree = tree
        self._workers = workers

    def paths(self) -> list[str]:
        """Return the path of every running process, such as `Application/Subsystem/BridgeHolder`."""
        return self._portal.call(self._ask(lambda tree: tree.paths()))

    def render(self) -> str:
        """Return the tree as text, with states and restarts, followed by the operating system processes that use the
        file.
        """
        return self._portal.call(self._ask(self._render))

    def processes(self) -> tuple[WorkerProcess, ...]:
        """Return the operating system processes that use the same file as this worker, the owner first.

        Each entry includes the work in progress of the process, at most about a second old. Empty if the engine is a
        server or in memory.
        """
        return self._portal.call(self._ask(lambda _: self._workers()))

    def _render(self, tree: Tree) -> str:
        return "\n".join((tree.render(), *map(_process_line, self._workers())))

    def faults(self) -> list[str]:
        """Return recent faults, latest first: the process that ended, the reason, and the restart."""
        return self._portal.call(self._ask(_faults))

    def kill(self, path: str) -> None:
        """Kill the process at a path, together with everything below it, without cleanup. The supervision tree must
        recover from it.
        """
        self._portal.call(self._ask(lambda tree: tree.kill(path)))

    async def _ask(self, question: Callable[[Tree], T]) -> T:
        return question(self._tree())


def _process_line(process: WorkerProcess) -> str:
    suffix = ", this one" if process.process_id == os.getpid() else ""
    part = "owns the file" if process.is_owner else "works"
    return (
        f"process {process.process_id}{suffix}  {part} (queues: {', '.join(process.task_queues)}; in progress: "
        f"{process.tasks} workflow tasks, {process.attempts} attempts)"
    )


def _faults(tree: Tree) -> list[str]:
    now = asyncio.get_running_loop().time()
    faults = [report for report in reversed(tree.reports()) if report.level >= logging.WARNING]
    return [f"{now - report.time:.0f} s ago: {report}" for report in faults]


class WorkerFacts:
    """The read-only properties of a worker. Create workers with `Worker(…)`."""

    _plan: Plan
    _life: WorkerLife
    _status: StatusServer | None
    _application: Application | None = None
    _services: dict[str, QueueServices]

    @property
    def task_queue(self) -> str:
        """The worker's task queue."""
        return self._plan.config.task_queue

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.task_queue!r}, {self._life.state}>"

    @property
    def tree(self) -> WorkerTree:
        """The supervision tree of this worker, for inspection and for failure tests."""
        return WorkerTree(
            self._portal, lambda: self._app.require_tree(), lambda: self._app.raw.status().processes
        )

    def statistics(self) -> WorkerStatistics:
        """Return the worker's statistics. Cheap, and safe on any thread."""
        return worker_statistics(
            self.task_queue, self._life.state, self._application, list(self._services.values())
        )

    @property
    def status_address(self) -> str | None:
        """The address of the status endpoint; None if it is disabled."""
        return None if self._status is None else self._status.address

    def _report(self) -> dict[str, Any]:
        return status_report(self._app, self._life.state)

    @property
    def _app(self) -> Application:
        if self._application is None:
            raise UsageError("this worker has not been started")
        return self._application

    @property
    def _portal(self) -> Portal:
        raise NotImplementedError
