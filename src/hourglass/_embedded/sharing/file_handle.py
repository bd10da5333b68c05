"""A worker's handle on a file: waits while another process owns it, and is the engine's own handle from then on.

Must not know: locks, sockets. A handle that stands by has nothing to poll: its polls wait. Invariants: it is
attached to one engine in its life; when that one ends, or when it can never have one, its polls raise
`HandleBroken` and the worker's tree opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    Handle,
    HandleBroken,
    HandleConfig,
    InProcess,
    Shutdown,
)
from hourglass._embedded.sharing.engine_room import EngineRoom
from hourglass._engine.commands import Completion
from hourglass._engine.events import Activation
from hourglass._engine.specs import Payloads
from hourglass.errors import HourglassError


class FileHandle:
    """Implements `hourglass._contract.handle.Handle`."""

    def __init__(
        self,
        config: HandleConfig,
        *,
        died: Callable[[], object],
        released: Callable[[FileHandle], object],
    ) -> None:
        config.check()
        loop = asyncio.get_running_loop()
        self.config = config
        self.settled: asyncio.Future[None] = loop.create_future()
        """Done once it works or stands by; fails with what it is refused with."""
        self.standing_by: object = None
        """The connection over which the owner was told of it."""
        self.room: EngineRoom | None = None
        self._attached: asyncio.Future[Handle] = loop.create_future()
        self._died = died
        self._released = released
        self._inner: Handle | None = None
        self.in_process: InProcess | None = None
        """The engine's own handle, once the file is ours."""
        self._broken: HandleBroken | None = None

    @property
    def queue(self) -> str:
        """The queue it serves, or would."""
        return self.config.task_queue

    async def attach(self, room: EngineRoom) -> None:
        """The file is ours: begin to work."""
        if self._attached.done():
            return
        self.room = room
        self._inner = await room.open_handle(self.config)
        self.in_process = self._inner.in_process
        if self._attached.done():  # shut down meanwhile
            self._inner.initiate_shutdown()
            return
        self._attached.set_result(self._inner)
        self._settle(None)

    def stand_by(self, over: object) -> None:
        """Another process owns the file, and knows of us."""
        self.standing_by = over
        self._settle(None)

    def fail(self, error: HourglassError) -> None:
        """It can never work, or does not any more."""
        self._settle(error)
        self._broken = HandleBroken(str(error))
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif not self._attached.done():
            self._attached.set_exception(self._broken)
            self._attached.exception()  # read, for asyncio: perhaps no poll waits for it

    def _settle(self, error: HourglassError | None) -> None:
        if self.settled.done():
            return
        if error is None:
            self.settled.set_result(None)
        else:
            self.settled.set_exception(error)
            self.settled.exception()  # read, for asyncio: the caller that opened it may have given up

    # --- Handle ---------------------------------------------------------------------------------------------

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        handle = await self._ready()
        try:
            return await handle.poll_activation()
        except (Shutdown, HandleBroken) as error:
            raise self._end_of_polls(error) from None

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        handle = await self._ready()
        try:
            return await handle.poll_activity()
        except (Shutdown, HandleBroken) as error:
            raise self._end_of_polls(error) from None

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation."""
        await self._working().complete_activation(completion)

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt."""
        await self._working().complete_activity(result)

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives."""
        self._working().heartbeat(token, details)

    def request_eviction(self, run_id: str) -> None:
        """Ask that a run be evicted."""
        self._working().request_eviction(run_id)

    def initiate_shutdown(self) -> None:
        """Take no new work; one that stands by ends at once."""
        if self._inner is not None:
            self._inner.initiate_shutdown()
        elif not self._attached.done():
            self._attached.set_exception(Shutdown("the handle is shut down"))
            self._attached.exception()
            self._settle(HandleBroken("the handle was shut down before it worked"))

    async def finalize_shutdown(self) -> None:
        """Free everything: the file is ours no longer if this was its last handle."""
        self.initiate_shutdown()
        try:
            if self._inner is not None:
                await self._inner.finalize_shutdown()
        finally:
            self._released(self)

    async def _ready(self) -> Handle:
        if self._inner is not None:
            return self._inner
        return await asyncio.shield(self._attached)

    def _end_of_polls(self, error: HourglassError) -> HourglassError:
        if isinstance(error, HandleBroken):
            self._died()
            return error
        return error if self._broken is None else self._broken

    def _working(self) -> Handle:
        if self._inner is None:
            raise HandleBroken("this handle stands by and has given nothing out")
        return self._inner
