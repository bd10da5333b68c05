"""An Application: everything that serves one connection (one target and namespace) in this process, and the state that
outlives parts of its tree.

Two targets in one process have two Applications, which share only the control loop. Everything here belongs to the
control loop. Handles close their connections when they end, so they only borrow the client's own connection
(`BorrowedConnection`). Invariants: a tree exists only while a queue is served. A queue is served by one worker at a
time. A restart never brings back a queue that is no longer wanted.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from hourglass._contract.handle import ActivityCancel, ActivityItem
from hourglass._contract.service import Connection
from hourglass._evaluator.events import Activation
from hourglass._supervision import (
    DynamicSupervisor,
    NotRunning,
    Process,
    ProcessRegistry,
    SupervisionError,
    SupervisionReport,
    TaskSupervisor,
    Tree,
    start_tree,
)
from hourglass._supervision.reports import log_report
from hourglass._worker.handles.codec_edge import CodecConnection, ConnectionWrapper
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.holder import BridgeHolder, HandleLimits, HandleTables
from hourglass._worker.tree.dispatch import Dispatch
from hourglass._worker.tree.parked_watch import ParkedCounts
from hourglass._worker.tree.plan import Plan
from hourglass._worker.tree.reachability import Reachability, ReachLimits
from hourglass._worker.tree.services import QueueServices
from hourglass._worker.tree.sightings import SightLimits
from hourglass._worker.tree.watchdog import WatchLimits
from hourglass.converter import Codec, Converter
from hourglass.errors import ServiceTimeoutError, UsageError


class BorrowedConnection(ConnectionWrapper):
    """A client's `Connection`, lent to handles: closing this object leaves the client's connection open.

    An engine in memory has only one connection. `inner`, the client's connection, can be replaced: later requests use
    the new connection.
    """

    async def close(self) -> None:
        """Do nothing: the client closes its own connection."""


logger = logging.getLogger("hourglass.worker")

Connect = Callable[[], Any]

_REPLACE_TIMEOUT = 60.0  # seconds for opening the handles of a new client


class Application:
    """The supervision tree of one connection, the tables of its handles, and the services of its task queues."""

    def __init__(
        self,
        connection: Connection,
        connect: Connect,
        *,
        converter: Converter,
        codec: Codec | None,
        client: Any,
        limits: HandleLimits | None = None,
        watch: WatchLimits | None = None,
        sight: SightLimits | None = None,
        reach: ReachLimits | None = None,
    ) -> None:
        # Borrowed: a handle that ends closes its connection, which must not be the client's own.
        self._borrowed = BorrowedConnection(connection)
        self.shared: Connection | None = _coded(self._borrowed, codec, converter)
        self.limits = limits or HandleLimits()
        self.watch = watch or WatchLimits()
        self.sight = sight or SightLimits()
        self.reach = reach or ReachLimits()
        self.reachability = Reachability()
        self.parked = ParkedCounts()
        self.tables = HandleTables()
        self.registry = ProcessRegistry()
        self.workers = DynamicSupervisor(max_restarts=20, window=5.0)
        self.lanes = DynamicSupervisor(max_restarts=100, window=5.0)
        self.evaluators = TaskSupervisor()
        self.executors = TaskSupervisor()
        self.dispatch = Dispatch(self.tables, self.evaluators, self.executors)
        self.distrust: Callable[[str], object] = lambda _: None
        self.tree: Tree | None = None
        self.restarts = 0
        self.stopping = False
        self._connect = connect
        self._converter = converter
        self._codec = codec
        self._client = client
        self._services: dict[str, QueueServices] = {}
        self._wanted: set[str] = set()
        self._launched: set[str] = set()
        self._holder: tuple[BridgeHolder, Process] | None = None
        self._tree_lock = asyncio.Lock()  # held while the tree is started or stopped
        self._restarting: asyncio.Task[None] | None = None
        self._stops: set[asyncio.Task[None]] = set()

    @property
    def raw(self) -> Connection:
        return self._borrowed.inner

    @property
    def holder(self) -> BridgeHolder:
        """The current holder. Raises `NotRunning` if there is none."""
        if self._holder is None or not self._holder[1].alive:
            raise NotRunning("the holder of the worker's handles is not running")
        return self._holder[0]

    def last_holder(self) -> BridgeHolder:
        """Return the current or last holder. Completions are sent through a holder even after its death, because its
        tables outlive the holder.
        """
        if self._holder is None:
            raise NotRunning("the holder of the worker's handles has not been started")
        return self._holder[0]

    def set_holder(self, holder: BridgeHolder, process: Process) -> None:
        self._holder = (holder, process)
        self.dispatch.holder = holder

    async def connect(self) -> Connection:
        """Open a new connection, or borrow the client's connection if the engine has only one."""
        connection = await self._connect()
        if connection is self.raw:
            connection = BorrowedConnection(connection)
        return _coded(connection, self._codec, self._converter)

    def use_fresh_connections(self) -> None:
        """Stop using the shared connection for handles, and exclude all current handles from adoption."""
        self.shared = None
        self.tables.distrust()

    def configured(self) -> list[QueueServices]:
        """Return the services of queues that have been launched and are still wanted.

        A queue whose first start is in progress is not included: the caller of that start handles failures.
        """
        return [self._services[queue] for queue in self._services if queue in self._wanted & self._launched]

    def is_configured(self, services: QueueServices) -> bool:
        """Whether these services should still serve their queue."""
        return services.queue in self._wanted and self._services.get(services.queue) is services

    def launched(self, services: QueueServices) -> None:
        """Mark a queue's first start as done: from now on the queue's worker is restarted after any failure."""
        self._launched.add(services.queue)

    @property
    def idle(self) -> bool:
        """Whether no queue is served and the tree has stopped."""
        return not self._services and self.tree is None

    def attempt_cancelled(self, record: HandleRecord, cancel: ActivityCancel) -> None:
        """Cancel an attempt whose cancellation no poll can deliver."""
        services = self._services.get(record.queue)
        if services is not None:
            services.executor.cancel(cancel.token, cancel.reason, record.generation)

    def run_evicted(self, record: HandleRecord, run_id: str) -> None:
        """Drop a run that a handle has evicted without a poll."""
        services = self._services.get(record.queue)
        if services is not None:
            services.evicted(record, run_id)

    def item_arrived(self, record: HandleRecord, item: Activation | ActivityItem) -> None:
        """Dispatch an item of a draining handle. The drain completes an item that is not dispatched."""
        services = self._services.get(record.queue)
        if services is None:
            return
        if isinstance(item, Activation):
            self.dispatch.activation(services, record, item)
        else:
            self.dispatch.activity(services, record, item)

    def handle_ended(self, record: HandleRecord) -> None:
        """Drop the state of a handle that has ended, and of all older handles of its queue."""
        services = self._services.get(record.queue)
        if services is not None:
            services.lanes.forget_older(record.generation + 1)

    def reserve(self, plan: Plan) -> QueueServices:
        """Return new services for a queue. From now on no other worker of this client can serve the queue."""
        queue = plan.config.task_queue
        if queue in self._services:
            raise UsageError(
                f"this client already runs a worker on task queue {queue!r}: register all workflows and activities with that "
                "worker, use another task queue, or connect a second client"
            )
        services = QueueServices(
            plan,
            self.raw.namespace,
            self._borrowed,
            self.last_holder,
            None if self._client is None else lambda: self._client,
        )
        self._services[queue] = services
        self._wanted.add(queue)
        return services

    @property
    def queues(self) -> frozenset[str]:
        """The names of the queues that are served or about to be served."""
        return frozenset(self._services)

    async def replace_client(self, connection: Connection, connect: Connect, client: Any) -> None:
        """Switch to the connection of another client of the same engine.

        Each queue gets a new handle immediately, and work in progress continues on the old handle. If a new handle
        cannot be opened, raise the error and switch back to the former client.
        """
        former = self._borrowed.inner, self._connect, self._client
        self._borrowed.inner, self._connect, self._client = connection, connect, client
        try:
            async with asyncio.timeout(_REPLACE_TIMEOUT):
                for services in self.configured():
                    await self.holder.recycle(services.queue, "the worker's client was replaced")
        except BaseException as error:
            self._borrowed.inner, self._connect, self._client = former
            if isinstance(error, TimeoutError):
                raise ServiceTimeoutError(
                    f"the new client opened no handle within {_REPLACE_TIMEOUT:g} s: the worker continues with the old client",
                    status="DEADLINE_EXCEEDED",
                ) from None
            raise

    async def serve(self, services: QueueServices) -> None:
        """Start serving a queue. Temporary failures are retried. After a permanent rejection, clean up and raise the
        error.
        """
        from hourglass._worker.tree.processes import launch_first, show_lanes

        try:
            services.start()
            await self._ensure_tree()
            await launch_first(self, services)
            with suppress(SupervisionError):  # a lane supervisor that is restarting adds the lanes itself
                await show_lanes(self, services)
        except BaseException:
            await self.stop_worker(services.queue)
            raise

    async def stop_worker(self, queue: str) -> None:
        """Stop serving a queue: unregister it, let work in progress finish within its limits, and free the queue's
        services.

        Cancelling the caller does not cancel the stop.
        """
        if queue in self._services:
            self._wanted.discard(queue)
            await self._run_to_end(self._stop_worker(self._services[queue]))

    async def _stop_worker(self, services: QueueServices) -> None:
        from hourglass._worker.tree.processes import end_worker, hide_lanes

        queue = services.queue
        services.executor.worker_stops()
        # In this order: no new work, then the handles drain, then their remaining tasks end, then the threads.
        await end_worker(self, queue)
        if self._holder is not None:
            await self.last_holder().unregister_worker(queue)
        while self.tables.of_queue(queue):
            await self.tables.changed.wait()
        await self.dispatch.finish(queue)
        await hide_lanes(self, services)
        if self._services.get(queue) is services:
            del self._services[queue]
            self._launched.discard(queue)
            services.stop()
        await self._stop_tree_if_unused()

    async def _run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)
        await asyncio.shield(task)

    async def _ensure_tree(self) -> None:
        async with self._tree_lock:
            if self.tree is None:
                await self._start_tree()

    async def _start_tree(self) -> None:
        from hourglass._worker.tree.subsystem import application

        self.tree = await start_tree(application(self), sink=self._on_report)
        self.tree.root.monitor(lambda down: self._root_died())

    def _on_report(self, report: SupervisionReport) -> None:
        if report.kind == "restarting":
            self.restarts += 1
        log_report(report)

    def _root_died(self) -> None:
        if not self.stopping:
            self._restarting = asyncio.get_running_loop().create_task(self._restart_tree())

    async def _restart_tree(self) -> None:
        """Start the tree again after its root has died, because the root has no supervisor of its own."""
        self.restarts += 1
        pause = 0.02
        while not self.stopping:
            try:
                await self._start_tree()
                return
            except Exception:
                logger.exception("the supervision tree could not be started; the start is retried")
            await sleep(pause)
            pause = min(2 * pause, 5.0)

    async def _stop_tree_if_unused(self) -> None:
        """Stop the tree if no queue is served any more."""
        async with self._tree_lock:
            if self._services:
                return
            self.stopping = True
            try:
                if self._restarting is not None:
                    await asyncio.wait({self._restarting})
                tree, self.tree = self.tree, None
                if tree is not None:
                    await tree.stop()
            finally:
                self.stopping = False

    def require_tree(self) -> Tree:
        """Return the running tree. Raises `UsageError` if there is none."""
        if self.tree is None:
            raise UsageError("the worker is not running and has no supervision tree")
        return self.tree


def _coded(connection: Connection, codec: Codec | None, converter: Converter) -> Connection:
    return connection if codec is None else CodecConnection(connection, codec, converter)
