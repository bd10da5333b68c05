"""A connection to an in-memory engine: the engine's door for clients and workers.

Must not know: how anything is done. Dispatch is a table; time limits of calls and the closed state are kept
here.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar, cast

from hourglass._bridge.handle import HandleConfig
from hourglass._bridge.service import Request
from hourglass._embedded.clock import Clock
from hourglass._embedded.engine import MemoryEngine
from hourglass._embedded.handle import MemoryHandle
from hourglass._embedded.requests import HANDLERS, PATIENT
from hourglass.errors import ConnectionFailedError, ServiceError, ServiceTimeoutError

A = TypeVar("A")


async def connect_memory(
    *, namespace: str = "default", identity: str = "", clock: Clock | None = None
) -> MemoryConnection:
    """Open a new engine in memory; it lives as long as its connection, on the running loop."""
    return MemoryConnection(MemoryEngine(namespace=namespace, clock=clock), identity=identity)


class MemoryConnection:
    """Implements `hourglass._bridge.service.Connection`."""

    def __init__(self, engine: MemoryEngine, *, identity: str = "") -> None:
        self.engine = engine
        self._identity = identity
        self._handles: list[MemoryHandle] = []
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

    async def call(self, request: Request[A]) -> A:
        """Ask, and wait for the answer."""
        self._check_open()
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise ServiceError(
                f"{type(request).__name__} is not supported by the in-memory engine yet",
                status="UNIMPLEMENTED",
            )
        limit = None if isinstance(request, PATIENT) else request.rpc_timeout
        try:
            async with asyncio.timeout(limit):
                return cast(A, await handler(self.engine, request))
        except TimeoutError as error:
            if isinstance(error, ServiceError):
                raise
            raise ServiceTimeoutError(
                f"{type(request).__name__} was not answered within {limit} s", status="DEADLINE_EXCEEDED"
            ) from None

    async def open_handle(self, config: HandleConfig) -> MemoryHandle:
        """Open a handle for a task queue."""
        self._check_open()
        handle = MemoryHandle(self.engine, config)
        self._handles.append(handle)
        return handle

    async def close(self) -> None:
        """Let go of everything. Handles that are still open end."""
        self._closed = True
        handles, self._handles = self._handles, []
        for handle in handles:
            await handle.finalize_shutdown()
        self.engine.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionFailedError("the connection is closed", status="UNAVAILABLE")
