"""A connection to an engine in this process: the engine's door for clients and workers.

Must not know: how a request is answered (see `requests.answer`). Time limits of calls and the closed state are kept
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hourglass._contract.handle import HandleConfig
from hourglass._contract.service import Request
from hourglass._contract.workflows import Executed, StartWorkflow
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.api.answering import too_late
from hourglass._embedded.api.requests import answer, execute
from hourglass._embedded.clock import Clock
from hourglass._embedded.engine import Engine, EngineFigures
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import ConnectionFailedError, ServiceError

A = TypeVar("A")


async def connect_memory(
    *,
    namespace: str = "default",
    identity: str = "",
    clock: Clock | None = None,
    policy: DispatchPolicy | None = None,
    limits: Limits | None = None,
) -> EngineConnection:
    """Open a new engine in memory; it lives as long as its connection, on the running loop.

    On a clock of the caller's nothing happens by itself but what is due: no run is ever dropped or forgotten.
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
    """Implements `hourglass._contract.service.Connection`. Several may share an engine; one may own it."""

    def __init__(self, engine: Engine, *, identity: str = "", owns_engine: bool = False) -> None:
        self.engine = engine
        self._identity = identity
        self._owns_engine = owns_engine
        self._handles: set[EngineHandle] = set()
        self._closed = False

    @property
    def target(self) -> str:
        """What it is connected to."""
        return "local:"

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self.engine.namespace

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self._identity

    @property
    def figures(self) -> EngineFigures:
        """How much there is to do."""
        return self.engine.figures

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        limit = request.time_limit
        if limit is None or request.waits:
            return self._answer(request)
        return self._answer_within(limit, request)

    async def execute(self, request: StartWorkflow) -> Executed:
        """Start a workflow and wait for its end, as one request."""
        self._check_open()
        return await execute(self.engine, request)

    async def _answer_within(self, limit: float, request: Request[A]) -> A:
        try:
            async with asyncio.timeout(limit):
                return await self._answer(request)
        except TimeoutError as error:
            if isinstance(error, ServiceError):
                raise
            raise too_late(request, limit) from None

    async def _answer(self, request: Request[A]) -> A:
        self._check_open()
        return await answer(self.engine, request)

    async def open_handle(self, config: HandleConfig) -> EngineHandle:
        """Open a handle for a task queue."""
        self._check_open()
        config.refuse_tuning()
        handle = EngineHandle(self.engine, config, self._handles.discard)
        self._handles.add(handle)
        return handle

    async def close(self) -> None:
        """Let go of everything. Handles of this connection that are still open end; others go on, unless
        the connection owns its engine.
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
