"""Delivery of heartbeats and results of attempts. They are sent over the attempt's handle while it accepts
them, and otherwise by client calls, so that an attempt can outlive its handle.

Invariants:

- An attempt has one heartbeat call in progress at a time, and never two within the throttle interval. Of the
  heartbeats that arrive in the meantime, only the newest is kept. It keeps its details, because a heartbeat
  without details erases them on the server.
- Errors are not raised: a result that cannot be sent is logged, and the engine's timeouts take effect.
- Results of local activities cannot be resent, because a local activity exists only in its handle.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from hourglass._contract.activities import CompleteActivity, HeartbeatActivity
from hourglass._contract.handle import ActivityResult, ActivityTask, context_of
from hourglass._contract.progress import without_carrier
from hourglass._contract.service import EngineService
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import Heartbeat
from hourglass._worker.handles.sending import completion_request
from hourglass._worker.work_log import facts_of
from hourglass.converter import Codec, Converter, default_converter, in_context, seal
from hourglass.errors import ServiceError

logger = logging.getLogger("hourglass.worker")

THROTTLE = 5.0
RPC_TIMEOUT = 10.0


class HeartbeatSender:
    """A `Heartbeat` function that sends over the handle, or by client calls if the handle fails. Must be called
    on the control loop. `cancel` is the executor's method.

    An attempt keeps running when its worker or handle ends. Without heartbeats, the attempt would time out on
    the server, which would start a second attempt in parallel. The answer to a client call replaces the
    handle's notifications: it reports that the attempt was cancelled, or that the server no longer waits for
    it.
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        service: EngineService,
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
        """Send a heartbeat over the handle, or by a client call if that fails."""
        try:
            self._heartbeat(token, details)
            return
        except Exception as error:
            if token in self._newest:
                self._newest[token] = details
                return
            logger.info(
                "sending a heartbeat through the client because the worker's handle failed: %s",
                type(error).__name__,
            )
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
                await sleep(self._throttle)
                following = self._newest[token]
        finally:
            self._newest.pop(token, None)

    async def _call(self, token: bytes, details: Payloads) -> None:
        request = HeartbeatActivity(token=token, details=details, rpc_timeout=RPC_TIMEOUT)
        try:
            if self._codec is not None:
                own = without_carrier(details)
                sealed = await asyncio.to_thread(seal, own, self._codec, self._converter)
                request = HeartbeatActivity(
                    token=token, details=(*sealed, *details[len(own) :]), rpc_timeout=RPC_TIMEOUT
                )
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


PAUSES: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 10.0)

# Status codes that a retry of the call would return again.
FINAL = frozenset(("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"))


class ResultSender:
    """The sender of results that no handle accepts, because the handle of the attempt has ended.

    Must be used on the control loop. `service` is the raw connection, so this class applies `codec`. Client calls
    send the result, and are retried with increasing pauses. Sending a result twice is harmless: the engine answers
    the second completion with NOT_FOUND, because the activity has already ended.
    """

    def __init__(
        self,
        service: EngineService,
        *,
        codec: Codec | None = None,
        converter: Converter = default_converter,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._service = service
        self._codec = codec
        self._converter = converter
        self._pauses = pauses

    async def send(self, task: ActivityTask, result: ActivityResult, problem: Exception) -> None:
        """Send a result that the handle has not accepted because of `problem`."""
        if task.is_local:  # only its handle can complete a local activity
            logger.warning(
                "the result of local activity %s (%s) of workflow %s is dropped, because its worker's handle ended first. The "
                "workflow task and the activity are retried",
                task.activity_type,
                task.activity_id,
                task.workflow_id,
                extra=facts_of(task),
            )
            return
        logger.warning(
            "the result of activity %s (%s) has not reached the engine: %s",
            task.activity_type,
            task.activity_id,
            f"{type(problem).__name__}: {problem}",
            extra=facts_of(task),
        )
        request = completion_request(result)
        if request is None:
            self._log_lost(task, "no client can send it")
            return
        try:
            sealed = await self._sealed(replace(request, rpc_timeout=RPC_TIMEOUT), task)
        except Exception as error:
            self._log_lost(task, f"its codec failed: {type(error).__name__}")
            return
        for pause in (*self._pauses, None):
            try:
                await self._service.call(sealed)
                return
            except Exception as error:
                status = error.status if isinstance(error, ServiceError) else ""
                if status == "NOT_FOUND":
                    return  # the result arrived earlier, or the attempt has timed out on the server
                if pause is None or status in FINAL:
                    self._log_lost(task, str(error))
                    return
            await sleep(pause)

    def _log_lost(self, task: ActivityTask, reason: str) -> None:
        logger.error(
            "the result of activity %s (%s) is lost: %s. The activity will time out",
            task.activity_type,
            task.activity_id,
            reason,
            extra=facts_of(task),
        )

    async def _sealed(self, request: CompleteActivity, task: ActivityTask) -> CompleteActivity:
        codec = self._codec
        if codec is None:
            return request
        codec = in_context(codec, context_of(task))
        return await asyncio.to_thread(seal, request, codec, self._converter)
