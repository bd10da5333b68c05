"""A connection to an engine in this process: the engine's door for clients and workers.

Must not know: how anything is done. Dispatch is a table; time limits of calls, what is too large, and the
closed state are kept here. Invariant: an answer is given only when all that it rests on is durable, a refusal too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import msgspec

from hourglass._contract.handle import HandleConfig
from hourglass._contract.service import Request
from hourglass._embedded.clients.answering import Answer, limit_of, refusal_rests_on, too_late
from hourglass._embedded.clients.requests import HANDLERS, LOOKS, PATIENT
from hourglass._embedded.clock import Clock
from hourglass._embedded.engine.engine import Engine
from hourglass._embedded.engine.task_queues import DispatchPolicy
from hourglass._embedded.store.memory import MemoryStore
from hourglass._embedded.workers.handle import EngineHandle
from hourglass.errors import ConnectionFailedError, HourglassError, ServiceError, StorageError

A = TypeVar("A")


async def connect_memory(
    *,
    namespace: str = "default",
    identity: str = "",
    clock: Clock | None = None,
    policy: DispatchPolicy | None = None,
) -> EngineConnection:
    """Open a new engine in memory; it lives as long as its connection, on the running loop.

    On a clock of the caller's nothing happens by itself but what is due: no run is ever dropped or forgotten.
    """
    engine = Engine(
        store=MemoryStore(real_time=clock is None), namespace=namespace, clock=clock, policy=policy
    )
    if clock is None:
        await engine.open_existing()
    else:
        engine.schedules.begin()
    return EngineConnection(engine, identity=identity, owns_engine=True)


class EngineConnection:
    """Implements `hourglass._contract.service.Connection`. Several may share an engine; one may own it."""

    def __init__(
        self, engine: Engine, *, identity: str = "", target: str = "local:", owns_engine: bool = False
    ) -> None:
        self.engine = engine
        self._identity = identity
        self._target = target
        self._owns_engine = owns_engine
        self._handles: set[EngineHandle] = set()
        self._closed = False

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self._target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self.engine.namespace

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self._identity

    def call(self, request: Request[A]) -> Coroutine[Any, Any, A]:
        """Ask, and wait for the answer."""
        limit = limit_of(request)
        if limit is None or isinstance(request, PATIENT):
            return self._answer(request)
        return self._answer_within(limit, request)

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
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise ServiceError(
                f"{type(request).__name__} is not supported by the embedded engine yet",
                status="UNIMPLEMENTED",
            )
        engine = self.engine
        engine.limits.check(request)
        try:
            answer: Answer[A] = await handler(engine, request)
        except StorageError as error:
            engine.doubt(error)
            raise
        except OverflowError:
            raise ServiceError(
                f"a number of this {type(request).__name__} is larger than 64 bits", status="INVALID_ARGUMENT"
            ) from None
        except HourglassError:
            # A refusal says how things are, as an answer does: it waits for the disk, too.
            engine.offers.stir()
            await self._may_leave(refusal_rests_on(engine, request))
            raise
        engine.offers.stir()  # before the wait: what handles take of it may be in the same commit
        await self._may_leave(answer.rests_on)
        if type(request) in LOOKS and (trouble := engine.trouble):
            notice = f"{trouble}; what is told is what the file has" if engine.held else trouble
            return cast(A, msgspec.structs.replace(cast(msgspec.Struct, answer.value), notice=notice))
        return answer.value

    async def _may_leave(self, rests_on: int) -> None:
        """Wait until what rests on this change may leave the engine. Raises `StorageError` if it never may."""
        engine = self.engine
        if engine.is_over or not engine.is_durable(rests_on):
            await engine.durable(rests_on)

    async def open_handle(self, config: HandleConfig) -> EngineHandle:
        """Open a handle for a task queue."""
        self._check_open()
        handle = EngineHandle(self.engine, config, self._handles.discard)
        self._handles.add(handle)
        return handle

    async def close(self) -> None:
        """Let go of everything. Handles of this connection that are still open end; others go on, unless
        the connection owns its engine.
        """
        self._closed = True
        for handle in tuple(self._handles):
            await handle.finalize_shutdown()
        if self._owns_engine:
            self.engine.close()

    def _check_open(self) -> None:
        if self._closed or self.engine.closed:
            raise ConnectionFailedError("the connection is closed", status="UNAVAILABLE")
        if self.engine.failed is not None:
            raise self.engine.failed
