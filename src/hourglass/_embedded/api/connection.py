"""The connection of clients and workers to an engine in this process.

Must not know: how a request is answered (see `requests.answer`). This module enforces the timeouts of calls, and
rejects calls on a closed connection.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import HandleConfig
from hourglass._contract.service import Request
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.api.answering import EngineClosed, too_late
from hourglass._embedded.api.requests import answer
from hourglass._embedded.clock import Clock
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import ConnectionFailedError, ServiceError
from hourglass.metrics import Family

A = TypeVar("A")


async def connect_memory(
    *,
    namespace: str = "default",
    identity: str = "",
    clock: Clock | None = None,
    policy: DispatchPolicy | None = None,
    limits: Limits | None = None,
) -> EngineConnection:
    """Open a new in-memory engine on the running event loop. The engine is closed together with its connection.

    If the caller passes a clock, the engine acts on its own only when a timer is due: no run is evicted or deleted.
    """
    engine = Engine(
        store=MemoryStore(real_time=clock is None),
        namespace=namespace,
        clock=clock,
        policy=policy,
        limits=limits,
    )
    if clock is None:
        await engine.open_existing()
    else:
        engine.begin()
    return EngineConnection(engine, identity=identity, owns_engine=True)


class EngineConnection:
    """Implements `hourglass._contract.service.Connection`. Several connections may share an engine, and one of them
    may own it.
    """

    def __init__(self, engine: Engine, *, identity: str = "", owns_engine: bool = False) -> None:
        self.engine = engine
        self.target = "local:"
        """The address of the engine."""
        self.namespace = engine.namespace
        self.identity = identity
        self._owns_engine = owns_engine
        self._handles: set[EngineHandle] = set()
        self._closed = False

    def status(self) -> EngineStatus:
        return EngineStatus(figures=self.engine.figures)

    def metrics(self) -> list[Family]:
        """Return an empty list, because the engine has no metrics of its own."""
        return []

    async def call(self, request: Request[A]) -> A:
        """Send a request to the engine and return its answer."""
        # Requests that wait enforce their time limit themselves.
        limit = None if request.waits else request.time_limit
        self._check_open()
        try:
            if limit is None:
                return await answer(self.engine, request)
            async with asyncio.timeout(limit):
                return await answer(self.engine, request)
        except EngineClosed:
            self._check_open()
            raise
        except TimeoutError as error:
            if limit is None or isinstance(error, ServiceError):
                raise
            raise too_late(request, limit) from None

    async def open_handle(self, config: HandleConfig) -> EngineHandle:
        self._check_open()
        config.reject_tuning()
        handle = EngineHandle(self.engine, config, self._handles.discard)
        self._handles.add(handle)
        return handle

    async def close(self) -> None:
        """Close the connection and its open handles. If the connection owns the engine, close the engine, too, which
        ends the handles of all other connections.
        """
        self._closed = True
        for handle in tuple(self._handles):
            await handle.finalize()
        if self._owns_engine:
            self.engine.close()

    def _check_open(self) -> None:
        if self._closed or self.engine.closed:
            raise ConnectionFailedError("the connection is closed", status="UNAVAILABLE")
        if self.engine.failed is not None:
            raise self.engine.failed
