"""Heartbeats of attempts that outlive the handle they came through: sent by the client's call instead.

An attempt goes on when its worker or handle is gone; without heartbeats the server would give it up and have
it run a second time beside the first. While the handle takes heartbeats nothing happens here.

Invariants: one call at a time for an attempt, and never two within the throttle; of what comes meanwhile only
the newest is kept, with its details, since a heartbeat without them wipes them on the server. The answer to a
call tells what the handle can tell no more: that the attempt was cancelled, or that nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from hourglass._contract.service import HeartbeatActivity, Service
from hourglass._engine.events import Payloads
from hourglass._runtime.attempts import Heartbeat
from hourglass.converter import Codec, Converter, default_converter, seal
from hourglass.errors import ServiceError

logger = logging.getLogger("hourglass.worker")

THROTTLE = 5.0
RPC_TIMEOUT = 10.0


class HeartbeatSender:
    """A `Heartbeat` around another. On the control loop; `cancel` is the executor's."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        service: Service,
        cancel: Callable[[bytes, str], None],
        *,
        codec: Codec | None = None,
        converter: Converter = default_converter,
        throttle: float = THROTTLE,
    ) -> None:
        self._heartbeat = heartbeat
        self._service = service
        self._cancel = cancel
        self._codec = codec
        self._converter = converter
        self._throttle = throttle
        self._newest: dict[bytes, Payloads | None] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def __call__(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives: by the handle, else by the client."""
        try:
            self._heartbeat(token, details)
            return
        except Exception as error:
            if token in self._newest:
                self._newest[token] = details
                return
            logger.info("a heartbeat goes by the client: its handle says %s", type(error).__name__)
        self._newest[token] = None
        task = asyncio.get_running_loop().create_task(self._send(token, details))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, token: bytes, details: Payloads) -> None:
        following: Payloads | None = details
        try:
            while following is not None:
                self._newest[token] = None
                await self._call(token, following)
                await asyncio.sleep(self._throttle)
                following = self._newest[token]
        finally:
            self._newest.pop(token, None)

    async def _call(self, token: bytes, details: Payloads) -> None:
        request = HeartbeatActivity(token=token, details=details, rpc_timeout=RPC_TIMEOUT)
        try:
            if self._codec is not None:
                request = await asyncio.to_thread(seal, request, self._codec, self._converter)
            answer = await self._service.call(request)
        except ServiceError as error:
            if error.status == "NOT_FOUND":
                self._cancel(token, "NOT_FOUND")
            else:
                logger.warning("a heartbeat could not be sent by the client: %s", error)
        except Exception as error:
            logger.warning("a heartbeat could not be sent by the client: %s", type(error).__name__)
        else:
            if answer.cancel_requested:
                self._cancel(token, "CANCELLED")
