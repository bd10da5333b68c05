"""An Application: all that serves one connection (one target and namespace) in this process, and what outlives its
tree's parts.

Two targets in one process have two Applications, which share nothing but the control loop. Everything here belongs
to the control loop. The client's own connection is only lent to handles, which close what they are given
(`BorrowedConnection`). Invariants: there is a tree while a queue is served, and none otherwise; a queue is served
once at a time; a queue that is no longer wanted is not brought back by any restart.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from hourglass._contract.handle import ActivityCancel, ActivityItem, Handle, HandleConfig
from hourglass._contract.service import Connection, Request
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
from hourglass._worker.handles.codec_edge import CodecConnection
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.holder import BridgeHolder, HandleLimits, HandleTables
from hourglass._worker.tree.dispatch import Dispatch
from hourglass._worker.tree.parked_watch import ParkedCounts
from hourglass._worker.tree.plan import Plan
from hourglass._worker.tree.services import QueueServices
from hourglass._worker.tree.watchdog import Reachability, ReachLimits, SightLimits, WatchLimits
from hourglass.converter import Codec, Converter
from hourglass.errors import ServiceTimeoutError, UsageError

# --- a connection that handles do not close -----------------------------------------------------------------


A = TypeVar("A")


class BorrowedConnection:
    """A client's `Connection`, lent to handles, which come and go over it: closing this one leaves the client's open.

    An engine in memory has but one connection. The lender can be replaced: what is asked next is asked of the new one.
    """

    def __init__(self, lender: Connection) -> None:
        self.lender = lender

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self.lender.target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self.lender.namespace

    @property
    def identity(self) -> str:
        """The identity that the engine is told."""
        return self.lender.identity

    async def call(self, request: Request[A]) -> A:
        """Ask, and wait for the answer."""
        return await self.lender.call(request)

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue."""
        return await self.lender.open_handle(config)

    async def close(self) -> None:
        """Nothing: the lender closes it."""


# --- the application ----------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

Connect = Callable[[], Any]

_REPLACING = 60.0  # seconds for the handles of a new client


class Application:
    """The tree of one connection, the tables of its handles, and the services of its queues."""

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
        # Borrowed: the end of a handle closes its connection, which must never be the client's own.
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
        self._gate = asyncio.Lock()  # planting and felling the tree
        self._reviving: asyncio.Task[None] | None = None
        self._tidying: set[asyncio.Task[None]] = set()

    @property
    def raw(self) -> Connection:
        """The client's own connection."""
        return self._borrowed.lender

    # --- what the processes ask --------------------------------------------------------------------------------------

    @property
    def holder(self) -> BridgeHolder:
        """The holder of the moment; `NotRunning` while there is none."""
        if self._holder is None or not self._holder[1].alive:
            raise NotRunning("the BridgeHolder is not running")
        return self._holder[0]

    def last_holder(self) -> BridgeHolder:
        """The holder that was last in charge, dead or alive: answers go through it, for its tables outlive it."""
        if self._holder is None:
            raise NotRunning("there was no BridgeHolder yet")
        return self._holder[0]

    def set_holder(self, holder: BridgeHolder, process: Process) -> None:
        """A holder has started."""
        self._holder = (holder, process)
        self.dispatch.holder = holder

    async def connect(self) -> Connection:
        """A fresh connection; where an engine has but one way in, that one, which is not ours to close."""
        fresh = await self._connect()
        if fresh is self.raw:
            fresh = BorrowedConnection(fresh)
        return _coded(fresh, self._codec, self._converter)

    def use_fresh_connections(self) -> None:
        """The shared connection is not used for handles any more, and no handle of now outlives its worker."""
        self.shared = None
        self.tables.distrust()

    def configured(self) -> list[QueueServices]:
        """The queues that should be served, and have been: a first start belongs to the caller that asked for it."""
        return [self._services[queue] for queue in self._services if queue in self._wanted & self._launched]

    def is_configured(self, services: QueueServices) -> bool:
        """Whether a queue should still be served by these services."""
        return services.queue in self._wanted and self._services.get(services.queue) is services

    def launched(self, services: QueueServices) -> None:
        """A queue's first start is done: from now on it is brought back whatever happens."""
        self._launched.add(services.queue)

    @property
    def idle(self) -> bool:
        """Whether it serves nothing and has nothing left to end."""
        return not self._services and self.tree is None

    def attempt_cancelled(self, queue: str, generation: int, cancel: ActivityCancel) -> None:
        """An attempt should stop, and no poll can say so."""
        services = self._services.get(queue)
        if services is not None:
            services.executor.cancel(cancel.token, cancel.reason, generation)

    def run_evicted(self, record: HandleRecord, run_id: str) -> None:
        """A handle has forgotten a run, and no poll says so."""
        services = self._services.get(record.queue)
        if services is not None:
            services.evicted(record, run_id)

    def item_arrived(self, record: HandleRecord, item: Activation | ActivityItem) -> None:
        """A handle that drains has something that must go on; it is answered there if it is not dispatched here."""
        services = self._services.get(record.queue)
        if services is None:
            return
        if isinstance(item, Activation):
            self.dispatch.activation(services, record, item)
        else:
            self.dispatch.activity(services, record, item)

    def handle_ended(self, queue: str, generation: int) -> None:
        """A handle is gone: nothing of its generation will be heard of again."""
        services = self._services.get(queue)
        if services is not None:
            services.forget(generation)

    # --- serving queues ----------------------------------------------------------------------------------------------

    def reserve(self, plan: Plan) -> QueueServices:
        """The services of a queue that is to be served; from now on no other worker of this client can serve it."""
        queue = plan.config.task_queue
        if queue in self._services:
            raise UsageError(
                f"this client already runs a worker on task queue {queue!r}: give that worker all workflows and "
                f"activities, or use another queue, or connect a second client"
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
        """The queues that it serves, or is about to."""
        return frozenset(self._services)

    async def replace_client(self, connection: Connection, connect: Connect, client: Any) -> None:
        """Work over the connection of another client, of the same engine: each queue gets a new handle at once, and what is in
        flight on the old one goes on. Where a new handle cannot be had it raises, and goes on with the client of before.
        """
        before = self._borrowed.lender, self._connect, self._client
        self._borrowed.lender, self._connect, self._client = connection, connect, client
        try:
            async with asyncio.timeout(_REPLACING):
                for services in self.configured():
                    await self.holder.recycle(services.queue, "the worker was given another client")
        except BaseException as error:
            self._borrowed.lender, self._connect, self._client = before
            if isinstance(error, TimeoutError):
                raise ServiceTimeoutError(
                    f"no handle by the new client within {_REPLACING:g} s: the worker goes on with the old one",
                    status="DEADLINE_EXCEEDED",
                ) from None
            raise

    async def serve(self, services: QueueServices) -> None:
        """Start to serve. Waits out what may pass; raises what the engine refused for good, and leaves nothing then."""
        from hourglass._worker.tree.processes import launch_first, show_lanes

        try:
            services.start()
            await self._ensure_tree()
            await launch_first(self, services)
            with suppress(SupervisionError):  # a supervisor of lanes that is on its way back adopts them
                await show_lanes(self, services)
        except BaseException:
            await self.stop_worker(services.queue)
            raise

    async def stop_worker(self, queue: str) -> None:
        """Serve a queue no longer: say farewell, let what is in flight finish within its limits, free everything.

        The caller may be cancelled; the stop goes on.
        """
        if queue in self._services:
            self._wanted.discard(queue)
            await self._whatever_comes(self._stop_worker(self._services[queue]))

    async def _stop_worker(self, services: QueueServices) -> None:
        from hourglass._worker.tree.processes import end_worker, hide_lanes

        queue = services.queue
        services.executor.worker_stops()
        # In this order: no new work, then the handles drain, then what still works for them ends, then its threads.
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
        await self._fell()

    async def _whatever_comes(self, work: Coroutine[Any, Any, None]) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)
        await asyncio.shield(task)

    # --- the tree ----------------------------------------------------------------------------------------------------

    async def _ensure_tree(self) -> None:
        async with self._gate:
            if self.tree is None:
                await self._plant()

    async def _plant(self) -> None:
        from hourglass._worker.tree.subsystem import application

        self.tree = await start_tree(application(self), sink=self._heard)
        self.tree.root.monitor(lambda down: self._root_died())

    def _heard(self, report: SupervisionReport) -> None:
        if report.kind == "restarting":
            self.restarts += 1
        log_report(report)

    def _root_died(self) -> None:
        if not self.stopping:
            self._reviving = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        """The root has no supervisor but this: a tree that died is planted again."""
        self.restarts += 1
        pause = 0.02
        while not self.stopping:
            try:
                await self._plant()
                return
            except Exception:
                logger.exception("the tree does not start; it is tried again")
            await sleep(pause)
            pause = min(2 * pause, 5.0)

    async def _fell(self) -> None:
        """Stop the tree, in order, if no queue is served any more."""
        async with self._gate:
            if self._services:
                return
            self.stopping = True
            try:
                if self._reviving is not None:
                    await asyncio.wait({self._reviving})
                tree, self.tree = self.tree, None
                if tree is not None:
                    await tree.stop()
            finally:
                self.stopping = False

    def require_tree(self) -> Tree:
        """The running tree."""
        if self.tree is None:
            raise UsageError("there is no tree: the worker is not running")
        return self.tree


def _coded(connection: Connection, codec: Codec | None, converter: Converter) -> Connection:
    return connection if codec is None else CodecConnection(connection, codec, converter)
