"""Serves Nexus operations beside a handle: polls for calls, has them answered by the author's functions, and sends the answers.

Core's rules are those of activities: every task gets one answer, or shutdown hangs; polls and answers are never cancelled. The
functions run in threads of their own, coroutines on a loop of their own. What cannot be decoded is the caller's fault
(BAD_REQUEST), everything else that is raised is tried again by the server, unless it says otherwise.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from functools import partial
from typing import Any

from temporalio.api.nexus.v1 import CancelOperationResponse, Response, StartOperationResponse
from temporalio.bridge.proto.nexus import NexusTask, NexusTaskCompletion

from hourglass import nexus
from hourglass._contract.handle import NexusServices
from hourglass._loops import submit
from hourglass._temporal import core
from hourglass._temporal.protos import payload_from, put_failure, put_payload
from hourglass.converter import seal, unseal
from hourglass.errors import ApplicationError, CancelledError, PayloadError

logger = logging.getLogger("hourglass.worker")

_RETRYABLE, _FINAL = 1, 2
_PAUSE = 1.0  # after a poll that failed


class NexusServer:
    """Serves until the worker is shut down."""

    def __init__(self, worker: core.Ref, services: NexusServices, namespace: str, task_queue: str) -> None:
        self._worker = worker
        self._services = services
        self._names = {"namespace": namespace, "task_queue": task_queue}
        self._calls: dict[bytes, asyncio.Task[None]] = {}
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    async def ended(self) -> None:
        """Wait until the last poll has ended and everything is answered. After `initiate_shutdown`."""
        await asyncio.wait({self._serving})

    async def _serve(self) -> None:
        while True:
            try:
                task: Any = NexusTask.FromString(await core.poll_nexus(self._worker))
            except core.PollShutdown:
                break
            except Exception as error:
                logger.error("a poll for Nexus calls failed: %s", type(error).__name__)
                if self._worker.gone:
                    return
                await asyncio.sleep(_PAUSE)
                continue
            if task.HasField("task"):
                token = task.task.task_token
                call = asyncio.get_running_loop().create_task(self._answer(task))
                self._calls[token] = call
                call.add_done_callback(partial(self._answered, token))
            elif (running := self._calls.get(task.cancel_task.task_token)) is not None:
                running.cancel()  # nobody waits for the answer any more: Core gets one all the same
        if self._calls:
            await asyncio.wait(set(self._calls.values()))

    def _answered(self, token: bytes, _: asyncio.Task[None]) -> None:
        self._calls.pop(token, None)

    async def _answer(self, task: Any) -> None:
        completion: Any = NexusTaskCompletion(task_token=task.task.task_token)
        try:
            if task.task.request.HasField("start_operation"):
                started = await self._start(task)
                completion.completed.CopyFrom(Response(start_operation=started))
            else:
                # What a function does at once cannot be cancelled; what it has started is known to it alone.
                completion.completed.CopyFrom(Response(cancel_operation=CancelOperationResponse()))
        except asyncio.CancelledError:
            completion.ack_cancel = True
        except BaseException as error:
            self._put_error(completion, error)
        try:
            await core.complete_nexus(self._worker, completion.SerializeToString())
        except Exception:
            logger.exception("the answer to a Nexus call could not be sent")

    async def _start(self, task: Any) -> Any:
        request = task.task.request.start_operation
        service = self._services.services.get(request.service)
        operation = None if service is None else service.operations.get(request.operation)
        if operation is None:
            raise nexus.HandlerError(
                f"this worker has no operation {request.operation!r} of a Nexus service {request.service!r}",
                type="NOT_FOUND",
            )
        info = nexus.Info(
            endpoint=task.endpoint,
            service=request.service,
            operation=request.operation,
            request_id=request.request_id,
            headers=dict(task.task.request.header),
            **self._names,
        )
        response: Any = StartOperationResponse()
        try:
            value = await self._called(operation, payload_from(request.payload), info)
            put_payload(response.sync_success.payload, await self._sealed(value))
        except nexus.OperationError as error:
            put_failure(response.failure, await self._failure(error))
        return response

    async def _called(self, operation: Any, payload: Any, info: nexus.Info) -> Any:
        services = self._services
        try:
            arguments = await asyncio.to_thread(_decoded, services, operation, payload)
        except PayloadError as error:
            raise nexus.HandlerError(str(error), type="BAD_REQUEST", retryable=False) from error
        context = contextvars.copy_context()
        context.run(nexus.current.set, nexus.CallContext(info, services.client))
        if inspect.iscoroutinefunction(operation.fn):
            coroutine = context.run(_in_context, context, operation.fn, arguments)
            return await asyncio.wrap_future(submit(coroutine, "nexus"))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(services.executor, lambda: context.run(operation.fn, *arguments))

    async def _sealed(self, value: Any) -> Any:
        services = self._services

        def encode() -> Any:
            payload = services.converter.encode(value)
            return payload if services.codec is None else seal(payload, services.codec, services.converter)

        return await asyncio.to_thread(encode)

    async def _failure(self, error: nexus.OperationError) -> Any:
        services = self._services
        ended: BaseException = (
            CancelledError(str(error))
            if error.canceled
            else ApplicationError(str(error), type="OperationError", non_retryable=True)
        )
        ended.__cause__ = error.__cause__
        failure = services.converter.to_failure(ended)
        if services.codec is None:
            return failure
        return await asyncio.to_thread(seal, failure, services.codec, services.converter)

    def _put_error(self, completion: Any, error: BaseException) -> None:
        known = error if isinstance(error, nexus.HandlerError) else None
        retryable = known.retryable if known is not None else None
        if isinstance(error, ApplicationError) and error.non_retryable:
            retryable = False
        if known is None:
            logger.warning("a Nexus operation raised %s", type(error).__name__, exc_info=error)
        failure = completion.failure
        failure.message = str(known) if known is not None else f"the operation raised {type(error).__name__}"
        failure.nexus_handler_failure_info.type = known.type if known is not None else "INTERNAL"
        if retryable is not None:
            failure.nexus_handler_failure_info.retry_behavior = _RETRYABLE if retryable else _FINAL
        if known is None and self._services.codec is None:
            put_failure(failure.cause, self._services.converter.to_failure(error))


async def _in_context(context: contextvars.Context, fn: Any, arguments: list[Any]) -> Any:
    nexus.current.set(context[nexus.current])
    return await fn(*arguments)


def _decoded(services: NexusServices, operation: Any, payload: Any) -> list[Any]:
    """The argument of a call, as its function wants it."""
    opened = payload if services.codec is None else unseal(payload, services.codec, services.converter)
    if not operation.signature.parameters:
        return []
    return [services.converter.decode(opened, operation.signature.types[0])]
