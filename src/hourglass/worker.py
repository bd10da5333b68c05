"""`Worker`: runs the workflows and activities of one task queue.

    with Client.connect("local:") as client, Worker(client, workflows=[checkout], activities=[charge]):
        ...

or, as a program of its own, `Worker(client, modules=["app"]).run()`, which ends on Ctrl-C or SIGTERM. The
parts that do the work are in `_runtime`; this is their face, and the only one that threads and event loops of
the user's meet.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any, Literal
from weakref import WeakKeyDictionary

from hourglass._bridge.handle import HandleConfig
from hourglass._engine.definition import check_exceptions
from hourglass._engine.options import Duration, seconds
from hourglass._runtime import debugging
from hourglass._runtime.assembly import Parts, assemble
from hourglass._runtime.evaluation import Verify
from hourglass._runtime.plan import Plan, check_config, checked_verify, checked_watch
from hourglass._runtime.resolver import Resolver
from hourglass._runtime.stop_signals import StopSignals
from hourglass._runtime.watcher import Action
from hourglass.activity._plain import worker_started, worker_stopped
from hourglass.client import AsyncClient, Client
from hourglass.errors import UsageError

__all__ = ["Worker", "WorkerStatistics"]

logger = logging.getLogger("hourglass.worker")

State = Literal["new", "running", "stopping", "stopped", "broken"]

_JOIN_LIMIT = 5.0
_EXIT_MARGIN = 5.0

# Which task queues each connection serves in this process: engines refuse a second handle, with a message
# nobody understands.
_serving: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_serving_lock = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class WorkerStatistics:
    """A look at a worker. `parked` names each run whose code raised a bug, and what kind of bug, where."""

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


class Worker:
    """Runs workflows and activities of one task queue, until it is shut down. It can be started again after
    that.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        task_queue: str = "default",
        *,
        workflows: Sequence[object] = (),
        activities: Sequence[object] = (),
        modules: Sequence[str | ModuleType] = (),
        max_cached_workflows: int = 1000,
        max_live_workflows: int | None = None,
        max_concurrent_workflow_tasks: int = 100,
        max_concurrent_activities: int = 100,
        max_concurrent_local_activities: int = 100,
        workflow_pollers: int = 5,
        activity_pollers: int = 5,
        sticky_timeout: Duration = 5.0,
        graceful_shutdown_timeout: Duration = 10.0,
        max_activities_per_second: float | None = None,
        failure_exceptions: Sequence[type[BaseException]] = (),
        verify: Verify = "off",
        watch: Action | Literal["off"] | None = None,
        lanes: int = 1,
        identity: str | None = None,
        build_id: str | None = None,
    ) -> None:
        if not isinstance(client, (Client, AsyncClient)):
            raise UsageError(f"a worker needs a Client or an AsyncClient, not {type(client).__name__}")
        self._client = client
        self._portal = client._portal
        resolver = Resolver(workflows=workflows, activities=activities, modules=modules)
        graceful = seconds(graceful_shutdown_timeout, "graceful_shutdown_timeout")
        config = HandleConfig(
            task_queue=task_queue,
            identity=identity or "",
            build_id=build_id or "",
            workflows=resolver.has_workflows,
            activities=resolver.has_activities,
            max_cached_workflows=max_cached_workflows,
            max_concurrent_workflow_tasks=max_concurrent_workflow_tasks,
            max_concurrent_activities=max_concurrent_activities,
            max_concurrent_local_activities=max_concurrent_local_activities,
            workflow_pollers=workflow_pollers,
            activity_pollers=activity_pollers,
            sticky_timeout=seconds(sticky_timeout, "sticky_timeout"),
            max_activities_per_second=max_activities_per_second,
            graceful_shutdown=graceful,
        )
        check_config(config, lanes)
        self._plan = Plan(
            config=config,
            resolver=resolver,
            converter=client.converter,
            codec=client.codec,
            failure_exceptions=check_exceptions(failure_exceptions),
            verify=checked_verify(verify),
            watch=checked_watch(watch, verify),
            lanes=lanes,
            max_live_workflows=max_cached_workflows if max_live_workflows is None else max_live_workflows,
            graceful_timeout=graceful,
        )
        self._state: State = "new"
        self._parts: Parts | None = None
        self._forget_exit: Callable[[], None] | None = None
        self._life = threading.RLock()
        self._over = threading.Event()
        self._failure: BaseException | None = None

    @property
    def task_queue(self) -> str:
        """The task queue it serves."""
        return self._plan.config.task_queue

    def __repr__(self) -> str:
        return f"<Worker on {self.task_queue!r}, {self._state}>"

    # --- blocking ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `shutdown` is called; on the main thread also until Ctrl-C or SIGTERM. Raises if the
        worker breaks.
        """
        self.start()
        with StopSignals(self._over):
            try:
                while not self._over.wait(1.0):  # bounded, so that signals are handled on every platform
                    pass
            finally:
                self.shutdown()
        if self._failure is not None:
            raise self._failure

    def start(self) -> Worker:
        """Begin to work, in the background."""
        self._reserve()
        try:
            self._started(self._portal.call(self._begin()))
        except BaseException:
            self._unreserve()
            raise
        return self

    def shutdown(self) -> None:
        """Take no new work, finish what is in flight within the graceful timeout, and end. Does nothing when
        not running.
        """
        with (
            self._life
        ):  # a second caller waits for the first; a signal handler that calls it again returns at once
            parts = self._stopping()
            if parts is not None:
                try:
                    self._portal.call(parts.worker.stop())
                finally:
                    self._stopped(parts.lanes.join(_JOIN_LIMIT))

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # --- on an event loop of the user's ------------------------------------------------------------------------------

    async def __aenter__(self) -> Worker:
        self._reserve()
        try:
            self._started(await self._portal.acall(self._begin()))
        except BaseException:
            self._unreserve()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        parts = self._stopping()
        if parts is not None:
            try:
                await self._portal.acall(parts.worker.stop())
            finally:
                self._stopped(await asyncio.to_thread(parts.lanes.join, _JOIN_LIMIT))

    # --- looking -----------------------------------------------------------------------------------------------------

    def statistics(self) -> WorkerStatistics:
        """How the worker is doing. Cheap, from any thread."""
        parts = self._parts
        if parts is None:
            return WorkerStatistics(task_queue=self.task_queue, state=self._state)
        counts = parts.counts()
        in_flight = parts.worker.statistics()
        return WorkerStatistics(
            task_queue=self.task_queue,
            state=self._state,
            cached_workflows=sum(each.cached for each in counts),
            live_workflows=sum(each.live for each in counts),
            parked={run: reason for each in counts for run, reason in each.parked.items()},
            activations=sum(each.activations for each in counts),
            failed_tasks=sum(each.failed_tasks for each in counts),
            cache_misses=sum(each.misses for each in counts),
            open_activations=in_flight["open_activations"],
            running_activities=in_flight["running_activities"],
        )

    # --- life --------------------------------------------------------------------------------------------------------

    async def _begin(self) -> Parts:
        parts = await assemble(self._plan, self._client.connection)
        watched = asyncio.get_running_loop().create_task(parts.worker.ended(), name=f"watch {self!r}")
        watched.add_done_callback(self._ended)
        return parts

    def _started(self, parts: Parts) -> None:
        self._parts = parts
        self._failure = None
        self._over.clear()
        self._state = "running"
        margin = self._plan.graceful_timeout + _EXIT_MARGIN
        self._forget_exit = self._portal.at_exit(parts.worker.stop, margin)
        worker_started()
        debugging.install()
        logger.info("worker on task queue %r of %s runs", self.task_queue, self._client.target)

    def _ended(self, watched: asyncio.Task[None]) -> None:
        """On the control loop: the worker polls no more, asked or unasked."""
        error = None if watched.cancelled() else watched.exception()
        if error is not None and self._state == "running":
            self._failure = error
            self._state = "broken"
        self._over.set()

    def _stopping(self) -> Parts | None:
        if self._parts is None or self._state == "stopping":
            return None
        self._state = "stopping"
        if self._forget_exit is not None:
            self._forget_exit()
        return self._parts

    def _stopped(self, ended: bool) -> None:
        if not ended:
            logger.error(
                "a lane of the worker on %r hangs in workflow code and is left behind", self.task_queue
            )
        self._state = "stopped"
        self._parts = None
        worker_stopped()
        self._unreserve()
        self._over.set()

    def _reserve(self) -> None:
        with _serving_lock:
            queues = _serving.setdefault(self._client.connection, set())
            if self.task_queue in queues:
                raise UsageError(
                    f"this client already runs a worker on task queue {self.task_queue!r}: give that worker all workflows "
                    f"and activities, or use another queue, or connect a second client"
                )
            queues.add(self.task_queue)

    def _unreserve(self) -> None:
        with _serving_lock:
            _serving.setdefault(self._client.connection, set()).discard(self.task_queue)
