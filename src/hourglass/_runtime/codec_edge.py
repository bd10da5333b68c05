"""A codec around a handle: what arrives is opened before the worker sees it, what leaves is sealed before the engine does.

A codec is the user's code and may be slow, so it runs in threads of its own, never on the control loop. What
it cannot open or seal still gets its answer (I3): the task or the attempt fails, with a text that says
nothing of the contents.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    ActivityTask,
    AttemptFailed,
    Handle,
    HandleConfig,
    InProcess,
)
from hourglass._contract.service import Connection, Request
from hourglass._engine.commands import Completion, TaskFailed
from hourglass._engine.events import Activation
from hourglass._engine.specs import Payloads
from hourglass._runtime.daemon_executor import DaemonExecutor
from hourglass._runtime.work_log import facts_of, named
from hourglass.converter import ApplicationFailure, Codec, Converter, Failure, seal, unseal
from hourglass.errors import PayloadError

A = TypeVar("A")
T = TypeVar("T")

logger = logging.getLogger("hourglass.worker")

_THREADS = 4


class CodecHandle:
    """A `Handle` whose payloads pass a codec."""

    in_process: InProcess | None = None
    """None, whatever the engine offers: a codec is the user's code and runs in threads, so every call has to wait."""

    def __init__(self, inner: Handle, codec: Codec, converter: Converter) -> None:
        self._inner = inner
        self._codec = codec
        self._converter = converter
        self._threads = DaemonExecutor("hourglass-codec", _THREADS)
        self._beats: dict[bytes, Payloads | None] = {}
        self._beating: set[asyncio.Task[None]] = set()

    async def poll_activation(self) -> Activation:
        """Wait for the next activation that the codec can open."""
        while True:
            activation = await self._inner.poll_activation()
            try:
                return await self._open(activation, in_workflow=True)
            except PayloadError as error:
                logger.error("run %s: %s; its task fails", activation.run_id, error)
                await self._inner.complete_activation(TaskFailed(activation.run_id, _failure(error)))

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task that the codec can open, or a cancellation."""
        while True:
            item = await self._inner.poll_activity()
            if not isinstance(item, ActivityTask):
                return item
            try:
                return await self._open(item)
            except PayloadError as error:
                logger.error("%s: %s; the attempt fails", named(item), error, extra=facts_of(item))
                await self._inner.complete_activity(AttemptFailed(item.token, _failure(error)))

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation; what cannot be sealed is a failed task."""
        try:
            sealed: Completion = await self._seal(completion, in_workflow=True)
        except PayloadError as error:
            logger.error("run %s: %s; its task fails", completion.run_id, error)
            sealed = TaskFailed(completion.run_id, _failure(error))
        await self._inner.complete_activation(sealed)

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt; what cannot be sealed is a failed attempt."""
        try:
            sealed: ActivityResult = await self._seal(result)
        except PayloadError as error:
            logger.error("an activity's result: %s; the attempt fails", error)
            sealed = AttemptFailed(result.token, _failure(error))
        await self._inner.complete_activity(sealed)

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives. While one report is being sealed only the newest waits."""
        if not details:
            self._inner.heartbeat(token, details)
        elif token in self._beats:
            self._beats[token] = details
        else:
            self._beats[token] = None
            task = asyncio.get_running_loop().create_task(self._beat(token, details))
            self._beating.add(task)
            task.add_done_callback(self._beating.discard)

    def request_eviction(self, run_id: str) -> None:
        """Ask for a run to be evicted."""
        self._inner.request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Take no new work."""
        self._inner.initiate_shutdown()

    async def finalize_shutdown(self) -> None:
        """Free everything."""
        while self._beating:
            await asyncio.wait(self._beating)
        self._threads.shutdown(wait=False)
        await self._inner.finalize_shutdown()

    async def _beat(self, token: bytes, details: Payloads) -> None:
        following: Payloads | None = details
        try:
            while following is not None:
                self._inner.heartbeat(token, await self._seal(following))
                following, self._beats[token] = self._beats[token], None
        except Exception as error:
            logger.warning("a heartbeat could not be sent: %s", error)
        finally:
            self._beats.pop(token, None)

    async def _open(self, item: T, in_workflow: bool = False) -> T:
        return await self._in_thread(
            lambda: unseal(item, self._codec, self._converter, in_workflow=in_workflow)
        )

    async def _seal(self, item: T, in_workflow: bool = False) -> T:
        return await self._in_thread(
            lambda: seal(item, self._codec, self._converter, in_workflow=in_workflow)
        )

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _failure(error: PayloadError) -> Failure:
    return Failure(message=str(error), info=ApplicationFailure(type=type(error).__name__))


class CodecConnection:
    """A `Connection` whose handles and requests pass a codec."""

    def __init__(self, inner: Connection, codec: Codec, converter: Converter) -> None:
        self._inner = inner
        self._codec = codec
        self._converter = converter

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self._inner.target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._inner.namespace

    @property
    def identity(self) -> str:
        """The identity that the engine is told."""
        return self._inner.identity

    async def call(self, request: Request[A]) -> A:
        """Ask, with sealed payloads; the answer is opened."""
        sealed = await asyncio.to_thread(seal, request, self._codec, self._converter)
        answer: A = await self._inner.call(sealed)
        return await asyncio.to_thread(unseal, answer, self._codec, self._converter)

    async def open_handle(self, config: HandleConfig) -> Handle:
        """A handle whose payloads pass the codec."""
        return CodecHandle(await self._inner.open_handle(config), self._codec, self._converter)

    async def close(self) -> None:
        """Let go of everything."""
        await self._inner.close()
