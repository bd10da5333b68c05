"""Delivery of heartbeats and results of attempts. They are sent over the attempt's handle while it accepts
them, and otherwise by client calls, so that an attempt can outlive its handle.

Invariants:

- An attempt has one heartbeat call in progress at a time, and never two within the throttle interval. Of the
  heartbeats that arrive in the meantime, only the newest is kept. It keeps its details, because a heartbeat
  without details erases them on the server.
- A completion that has begun is never cancelled. Errors are not raised: a result that cannot be sent is logged,
  and the engine's timeouts take effect.
- Results of local activities cannot be resent, because a local activity exists only in its handle.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

from hourglass._contract.activities import CompleteActivity, HeartbeatActivity
from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
    context_of,
)
from hourglass._contract.progress import (
    without_carrier,
)
from hourglass._contract.service import EngineService
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import Heartbeat
from hourglass._worker.work_log import facts_of
from hourglass.converter import (
    CanceledFailure,
    Codec,
    Converter,
    default_converter,
    in_context,
    seal,
)
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


PATIENCE = 5.0
PAUSES: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 10.0, 10.0)

# Status codes that a retry of the call would return again.
FINAL = frozenset(("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"))

Complete = Callable[[ActivityResult], Awaitable[None]]


class Delivery(Enum):
    """The way in which a result was delivered to the engine, or the reason why it was not."""

    BY_HANDLE = "by handle"
    BY_CLIENT = "by client"
    UNWANTED = "unwanted"
    LOST = "lost"


class ResultSender:
    """The sender of the results of attempts, which delivers them even if their handle has ended or does not
    answer.

    Must be used on the control loop. `service` is the raw connection, so this class applies `codec`. The
    handle's completion is tried first. If it raises, or has not succeeded after a few seconds (after an outage
    of 6 to 10 seconds, Core drops results silently), the result is sent by client calls, which are retried with
    increasing pauses. Sending a result twice is harmless: the engine answers the second completion with
    NOT_FOUND, because the activity has already ended.
    """

    def __init__(
        self,
        service: EngineService,
        *,
        codec: Codec | None = None,
        converter: Converter = default_converter,
        patience: float = PATIENCE,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._service = service
        self._codec = codec
        self._converter = converter
        self._patience = patience
        self._pauses = pauses
        self._begun: set[asyncio.Future[None]] = set()

    async def send(self, task: ActivityTask, result: ActivityResult, complete: Complete) -> Delivery:
        """Send a result over the handle (`complete`), or by client calls if that fails."""
        own = self._begin(complete, result)
        await asyncio.wait({own}, timeout=self._patience)
        if _has_succeeded(own):
            return Delivery.BY_HANDLE
        if not (task.is_local and own.done()):
            self._explain(task, own)
        if task.is_local or isinstance(result, ActivityDeferred):
            await asyncio.wait({own})  # only the handle can complete a local activity
            if _has_succeeded(own):
                return Delivery.BY_HANDLE
            return (
                self._report_lost_local(task)
                if task.is_local
                else self._report_lost(task, "no client can send it")
            )
        try:
            request = await self._sealed(request_of(task, result), task)
        except Exception as error:
            return self._report_lost(task, f"its codec failed: {type(error).__name__}")
        return await self._resend(task, request, own)

    async def _resend(
        self, task: ActivityTask, request: CompleteActivity, own: asyncio.Future[None]
    ) -> Delivery:
        problem: Exception | None = None
        for pause in (*self._pauses, None):
            try:
                await self._service.call(request)
            except ServiceError as error:
                if error.status == "NOT_FOUND":
                    # The handle's completion has succeeded in the meantime, or the attempt has timed out on the
                    # server.
                    return Delivery.BY_HANDLE if _has_succeeded(own) else Delivery.UNWANTED
                problem = error
            except Exception as error:
                problem = error
            else:
                return Delivery.BY_CLIENT
            if pause is None or getattr(problem, "status", "") in FINAL:
                break
            await _wait(own, pause)
            if _has_succeeded(own):
                return Delivery.BY_HANDLE
        return self._report_lost(task, str(problem))

    def _begin(self, complete: Complete, result: ActivityResult) -> asyncio.Future[None]:
        async def run() -> None:
            await complete(result)

        own: asyncio.Future[None] = asyncio.get_running_loop().create_task(run())
        self._begun.add(own)  # asyncio keeps only weak references to tasks, and this task may outlive `send`
        own.add_done_callback(self._ended)
        return own

    def _ended(self, own: asyncio.Future[None]) -> None:
        self._begun.discard(own)
        if not own.cancelled():
            own.exception()  # asyncio logs exceptions that are never retrieved

    def _explain(self, task: ActivityTask, own: asyncio.Future[None]) -> None:
        reason = (
            _problem(own) if own.done() else f"the engine has not confirmed it within {self._patience:g} s"
        )
        logger.warning(
            "the result of activity %s (%s) has not reached the engine: %s",
            task.activity_type,
            task.activity_id,
            reason,
            extra=facts_of(task),
        )

    def _report_lost_local(self, task: ActivityTask) -> Delivery:
        logger.warning(
            "the result of local activity %s (%s) of workflow %s is dropped, because its worker's handle ended first. The "
            "workflow task and the activity are retried",
            task.activity_type,
            task.activity_id,
            task.workflow_id,
            extra=facts_of(task),
        )
        return Delivery.LOST

    def _report_lost(self, task: ActivityTask, reason: str) -> Delivery:
        logger.error(
            "the result of activity %s (%s) is lost: %s. The activity will time out",
            task.activity_type,
            task.activity_id,
            reason,
            extra=facts_of(task),
        )
        return Delivery.LOST

    async def _sealed(self, request: CompleteActivity, task: ActivityTask) -> CompleteActivity:
        codec = self._codec
        if codec is None:
            return request
        codec = in_context(codec, context_of(task))
        return await asyncio.to_thread(seal, request, codec, self._converter)


def request_of(task: ActivityTask, result: ActivityResult) -> CompleteActivity:
    """Return the client request that reports a result."""
    match result:
        case AttemptFailed(token, failure):
            return CompleteActivity(token=token, failure=failure, rpc_timeout=RPC_TIMEOUT)
        case AttemptCancelled(token, failure):
            details = failure.info.details if isinstance(failure.info, CanceledFailure) else ()
            return CompleteActivity(
                token=token, cancelled=True, cancelled_details=details, rpc_timeout=RPC_TIMEOUT
            )
        case ActivityOk(token, payload):
            return CompleteActivity(token=token, result=payload, rpc_timeout=RPC_TIMEOUT)
        case ActivityDeferred():
            raise ValueError(
                f"activity {task.activity_type} is completed asynchronously, and has no result to report"
            )


def _has_succeeded(own: asyncio.Future[None]) -> bool:
    return own.done() and not own.cancelled() and own.exception() is None


def _problem(own: asyncio.Future[None]) -> str:
    error = None if own.cancelled() else own.exception()
    return "cancelled" if error is None else f"{type(error).__name__}: {error}"


async def _wait(own: asyncio.Future[None], pause: float) -> None:
    """Wait for `pause` seconds, or until the handle's completion ends."""
    if own.done():
        await sleep(pause)
    else:
        await asyncio.wait({own}, timeout=pause)
