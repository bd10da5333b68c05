"""A worker's handle on a file, on whichever engine serves the file.

Must not know: locks, sockets, which process owns the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hourglass._contract.handle import (
    ActivityResult,
    CompletionResult,
    Handle,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.remote import OwnerConnection
from hourglass._embedded.multiprocess.remote_handle import RemoteHandle
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.specs import Payloads
from hourglass.errors import HourglassError


class FileHandle:
    """A worker's handle on a file. It delegates to a handle on the engine of this process, or on the owner's engine,
    once there is an engine.

    Implements `hourglass._contract.handle.Handle`. Must not know: locks, sockets. Until the handle has an engine, it
    delivers no work. Invariants: a handle is attached to only one engine in its life; when that engine or its process
    ends, or when the handle can never have an engine, the handle ends with `HandleBroken`, and the worker's tree opens
    another handle.
    """

    def __init__(
        self,
        config: HandleConfig,
        *,
        died: Callable[[FileHandle], object],
        released: Callable[[FileHandle], object],
    ) -> None:
        config.check()
        loop = asyncio.get_running_loop()
        self.config = config
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done once the handle works, or has to wait for a known reason. Fails with the error for which the handle was
        rejected.
        """
        self.owner: object = None
        """The connection over which the handle works, or the error for which the handle waits."""
        self.engine: OpenEngine | None = None
        self._died = died
        self._released = released
        self._inner: Handle | None = None
        self._receivers: tuple[OnActivations, OnActivities, OnEnd] | None = None
        self._paused: set[WorkKind] = set()
        self._end: Shutdown | HandleBroken | None = None
        """The reason why the handle has ended without an engine; None if it has not."""
        self._broken: HandleBroken | None = None

    @property
    def queue(self) -> str:
        return self.config.task_queue

    def attach(self, engine: OpenEngine) -> None:
        """Attach the engine of this process, unless the handle is attached or has ended."""
        if not self.is_new:
            return
        self.engine = engine
        self._attach(engine.open_handle(self.config))

    def attach_remote(self, owner: OwnerConnection, handle: RemoteHandle) -> None:
        self.owner = owner
        if not self.is_new:  # the handle was shut down while being opened
            owner.send(wire.ShutDownHandle(handle.number))
            return
        self._attach(handle)

    def _attach(self, handle: EngineHandle | RemoteHandle) -> None:
        self._inner = handle
        self._start_inner()
        self._settle(None)

    def _start_inner(self) -> None:
        """Start the delivery of work, if there are both an engine and receivers."""
        if self._inner is None or self._receivers is None:
            return
        on_activations, on_activities, _ = self._receivers
        self._inner.start(on_activations, on_activities, self._ended)
        for kind in self._paused:
            self._inner.pause(kind)

    @property
    def is_new(self) -> bool:
        """Whether the handle has no engine yet, and may still get one."""
        return self._inner is None and self._end is None

    def take_unfinished(self) -> tuple[list[ActivityResult], set[bytes]]:
        """Return the worker's unconfirmed results since the last call, and its attempts.

        Both are empty unless the handle is on the engine of this process.
        """
        if not isinstance(self._inner, EngineHandle) or self._inner.unconfirmed is None:
            return [], set()
        results, self._inner.unconfirmed = self._inner.unconfirmed, []
        return results, self._inner.attempts

    def wait_for(self, why: object) -> None:
        self.owner = why
        self._settle(None)

    def fail(self, error: HourglassError) -> None:
        """Break the handle, because it can never work or no longer works."""
        self._settle(error)
        self._broken = HandleBroken(str(error))
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif self._end is None:
            self._end_without_engine(self._broken)

    def _settle(self, error: HourglassError | None) -> None:
        if self.settled.done():
            return
        if error is None:
            self.settled.set_result(None)
        else:
            self.settled.set_exception(error)
            self.settled.exception()  # retrieved for asyncio: the caller of `open_handle` may have stopped waiting

    def _end_without_engine(self, why: Shutdown | HandleBroken) -> None:
        self._end = why
        if self._receivers is not None:
            asyncio.get_running_loop().call_soon(self._report_end)

    def _report_end(self) -> None:
        assert self._end is not None
        for kind in WorkKind:
            self._ended(kind, self._end)

    def _ended(self, kind: WorkKind, why: Exception) -> None:
        assert self._receivers is not None
        if isinstance(why, HandleBroken):
            self._died(self)
        elif self._broken is not None:
            why = self._broken
        self._receivers[2](kind, why)

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Register the receivers. Delivery begins as soon as there is an engine."""
        self._receivers = on_activations, on_activities, on_end
        self._start_inner()
        if self._end is not None:
            asyncio.get_running_loop().call_soon(self._report_end)

    def pause(self, kind: WorkKind) -> None:
        self._paused.add(kind)
        if self._inner is not None:
            self._inner.pause(kind)

    def resume(self, kind: WorkKind) -> None:
        self._paused.discard(kind)
        if self._inner is not None:
            self._inner.resume(kind)

    def complete_workflow_task(
        self, completion: Completion
    ) -> CompletionResult | asyncio.Future[CompletionResult]:
        return (self._inner or self._working()).complete_workflow_task(completion)

    def complete_activity(self, result: ActivityResult) -> asyncio.Future[None] | None:
        return (self._inner or self._working()).complete_activity(result)

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        self._working().heartbeat(token, details)

    def request_eviction(self, run_id: str) -> None:
        self._working().request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Stop receiving work. A handle without an engine ends immediately."""
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif self._end is None:
            self._end_without_engine(Shutdown("the handle is shut down"))
            self._settle(HandleBroken("the handle was shut down before it was connected to an engine"))

    async def finalize(self) -> None:
        """Close the handle. The file is released when this process closes its last handle."""
        self.initiate_shutdown()
        try:
            if self._inner is not None:
                await self._inner.finalize()
        finally:
            self._released(self)

    def _working(self) -> Handle:
        if self._inner is None:
            raise HandleBroken("this handle is not connected to an engine yet and has no work in progress")
        return self._inner
