"""An Application: all that serves one connection (one target and namespace) in this process, and what outlives its tree's parts.

Two targets in one process have two Applications, which share nothing but the control loop. Everything here belongs to the control
loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from hourglass._bridge.handle import ActivityCancel
from hourglass._bridge.holder import BridgeHolder, HandleTables, Limits
from hourglass._bridge.service import Connection
from hourglass._runtime.codec_edge import CodecConnection
from hourglass._runtime.dispatch import Dispatch
from hourglass._runtime.plan import Plan
from hourglass._runtime.services import QueueServices
from hourglass._supervision import (
    DynamicSupervisor,
    NotRunning,
    Process,
    Registry,
    StartFailed,
    TaskSupervisor,
    Tree,
    start_tree,
)
from hourglass.converter import Codec, Converter
from hourglass.errors import InternalError, UsageError

logger = logging.getLogger("hourglass.worker")

Connect = Callable[[], Any]


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
        limits: Limits | None = None,
    ) -> None:
        self.raw = connection
        self.shared: Connection | None = _coded(connection, codec, converter)
        self.limits = limits or Limits()
        self.tables = HandleTables()
        self.registry = Registry()
        self.workers = DynamicSupervisor(max_restarts=20, window=5.0)
        self.lanes = DynamicSupervisor(max_restarts=100, window=5.0)
        self.evaluators = TaskSupervisor()
        self.executors = TaskSupervisor()
        self.dispatch = Dispatch(self.evaluators, self.executors, lambda: self.holder)
        self.distrust: Callable[[str], object] = lambda _: None
        self.tree: Tree | None = None
        self.restarts = 0
        self._connect = connect
        self._converter = converter
        self._codec = codec
        self._client = client
        self._services: dict[str, QueueServices] = {}
        self._holder: tuple[BridgeHolder, Process] | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._stopping = False

    # --- what the processes ask --------------------------------------------------------------------------------------

    @property
    def holder(self) -> BridgeHolder:
        """The holder of the moment; `NotRunning` while there is none."""
        if self._holder is None or not self._holder[1].alive:
            raise NotRunning("the BridgeHolder is not running")
        return self._holder[0]

    def set_holder(self, holder: BridgeHolder, process: Process) -> None:
        """A holder has started."""
        self._holder = (holder, process)

    async def connect(self) -> Connection:
        """A fresh connection."""
        return _coded(await self._connect(), self._codec, self._converter)

    def use_fresh_connections(self) -> None:
        """The shared connection is not used for handles any more."""
        self.shared = None

    def configured(self) -> list[QueueServices]:
        """The queues that should be served."""
        return list(self._services.values())

    def is_configured(self, services: QueueServices) -> bool:
        """Whether a queue should still be served by these services."""
        return self._services.get(services.queue) is services

    def attempt_cancelled(self, queue: str, generation: int, cancel: ActivityCancel) -> None:
        """An attempt should stop, and no poll can say so."""
        services = self._services.get(queue)
        if services is not None:
            services.executor.cancel(cancel.token, cancel.reason)

    def handle_ended(self, queue: str, generation: int) -> None:
        """A handle is gone: nothing of its generation will be heard of again."""
        services = self._services.get(queue)
        if services is not None:
            services.lanes.forget_older(generation + 1)

    # --- serving queues ----------------------------------------------------------------------------------------------

    async def start_worker(self, plan: Plan) -> QueueServices:
        """Serve a queue. Raises what the engine refused for good."""
        from hourglass._runtime.processes import show_lanes, worker

        queue = plan.config.task_queue
        if queue in self._services:
            raise UsageError(
                f"this client already runs a worker on task queue {queue!r}: give that worker all workflows and "
                f"activities, or use another queue, or connect a second client"
            )
        await self._ensure_tree()
        services = QueueServices(plan, self.raw.namespace, self.raw, lambda: self.holder, self._client)
        self._services[queue] = services
        services.start()
        try:
            await self.workers.start_child(worker(self, services))
        except BaseException as error:
            del self._services[queue]
            services.stop()
            if isinstance(error, StartFailed) and error.__cause__ is not None:
                raise error.__cause__ from None
            raise
        await show_lanes(self, services)
        return services

    async def stop_worker(self, queue: str) -> None:
        """Serve a queue no longer: say farewell, let what is in flight finish within its limits, free everything."""
        from hourglass._runtime.processes import hide_lanes

        services = self._services.get(queue)
        if services is None:
            return
        try:
            await self.workers.terminate_child(queue)
        except Exception as error:
            logger.debug("the worker on %r was not running: %s", queue, error)
        if self._holder is not None:
            await self._holder[0].unregister_worker(queue)
        while any(record.queue == queue for record in self.tables.records.values()):
            await self.tables.bell.wait()
        await self.dispatch.settle()
        self._services.pop(queue, None)
        await hide_lanes(self, services)
        services.stop()
        if not self._services:
            await self.stop()

    # --- the tree ----------------------------------------------------------------------------------------------------

    async def _ensure_tree(self) -> None:
        if self.tree is None:
            self._stopping = False
            await self._plant()

    async def _plant(self) -> None:
        from hourglass._runtime.subsystem import application

        self.tree = await start_tree(application(self))
        self.tree.root.monitor(lambda down: self._root_died())

    def _root_died(self) -> None:
        if not self._stopping:
            self._reviving = asyncio.get_running_loop().create_task(self._revive())

    async def _revive(self) -> None:
        """The root has no supervisor but this: a tree that died is planted again."""
        self.restarts += 1
        pause = 0.02
        while not self._stopping:
            try:
                await self._plant()
                return
            except Exception:
                logger.exception("the tree does not start; it is tried again")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5.0)

    async def stop(self) -> None:
        """Stop everything, in order."""
        self._stopping = True
        if self._reviving is not None:
            await asyncio.wait({self._reviving})
        tree, self.tree = self.tree, None
        if tree is not None:
            await tree.stop()
        await self.dispatch.settle()
        for services in self.configured():
            services.stop()
        self._services.clear()

    def require_tree(self) -> Tree:
        """The running tree."""
        if self.tree is None:
            raise InternalError("the tree is not running")
        return self.tree


def _coded(connection: Connection, codec: Codec | None, converter: Converter) -> Connection:
    return connection if codec is None else CodecConnection(connection, codec, converter)
