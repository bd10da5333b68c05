"""Nexus operations of a worker: polls for calls, runs the user's handlers, and sends the answers.

Core has the same rules as for activities: every task needs exactly one answer, or the shutdown hangs, and polls
and answers are never cancelled. Functions run in threads, and coroutines on a separate loop. An argument that
cannot be decoded is the caller's fault (BAD_REQUEST). The server retries after any other exception, unless it
is marked as not retryable.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import re
import urllib.parse
from asyncio import sleep
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import CancelOperationResponse, Response, StartOperationResponse
from temporalio.api.nexus.v1 import Link as NexusLink
from temporalio.bridge.proto.nexus import NexusTask, NexusTaskCompletion

from hourglass import nexus
from hourglass._contract.handle import NexusServices
from hourglass._loops import submit
from hourglass._temporal import core
from hourglass._temporal.failures import put_failure
from hourglass._temporal.protos import payload_from, put_payload
from hourglass.converter import Codec, Converter, NexusSerializationContext, in_context, seal, unseal
from hourglass.errors import (
    ApplicationError,
    CancelledError,
    PayloadError,
    ServiceError,
    UsageError,
    WorkflowAlreadyStartedError,
)

logger = logging.getLogger("hourglass.worker")

_RETRYABLE, _FINAL = 1, 2
_PAUSE = 1.0  # seconds after a failed poll


class NexusServer:
    """The part of a worker that serves Nexus operations until the worker is shut down."""

    def __init__(self, worker: core.Ref, services: NexusServices, namespace: str, task_queue: str) -> None:
        self._worker = worker
        self._services = services
        self._names = {"namespace": namespace, "task_queue": task_queue}
        self._calls: dict[bytes, asyncio.Task[None]] = {}
        self._shutdown = nexus.ShutdownNotice()
        self._serving = asyncio.get_running_loop().create_task(self._serve())

    def stopping(self) -> None:
        """Notify operations that the worker is shutting down."""
        self._shutdown.begin()

    async def ended(self) -> None:
        """Wait until the last poll has ended and all calls are answered. Call after `initiate_shutdown`."""
        await asyncio.wait({self._serving})

    async def _serve(self) -> None:
        while True:
            try:
                task: Any = NexusTask.FromString(await core.poll_nexus(self._worker))
            except core.PollShutdown:
                break
            except Exception as error:
                logger.error("a poll for Nexus tasks failed: %s", type(error).__name__)
                if self._worker.gone:
                    return
                await sleep(_PAUSE)
                continue
            if task.HasField("task"):
                token = task.task.task_token
                call = asyncio.get_running_loop().create_task(self._answer(task))
                self._calls[token] = call
                call.add_done_callback(partial(self._answered, token))
            elif (running := self._calls.get(task.cancel_task.task_token)) is not None:
                running.cancel()  # the caller stopped waiting; Core still needs an answer
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
                await self._cancel(task)
                completion.completed.CopyFrom(Response(cancel_operation=CancelOperationResponse()))
        except asyncio.CancelledError:
            completion.ack_cancel = True
        except BaseException as error:
            await self._put_error(completion, error, task)
        try:
            await core.complete_nexus(self._worker, completion.SerializeToString())
        except Exception:
            logger.exception("the response to a Nexus request could not be sent")

    def _operation(self, request: Any) -> Any:
        service = self._services.services.get(request.service)
        operation = None if service is None else service.operations.get(request.operation)
        if operation is None:
            raise nexus.HandlerError(
                f"unknown Nexus operation {request.operation!r} of service {request.service!r} on this worker",
                type="NOT_FOUND",
            )
        return operation

    def _context(
        self, task: Any, request: Any, callback: nexus.NexusCallback | None = None
    ) -> nexus.CallContext:
        info = nexus.Info(
            endpoint=task.endpoint,
            service=request.service,
            operation=request.operation,
            request_id=getattr(request, "request_id", ""),
            headers=dict(task.task.request.header),
            **self._names,
        )
        services = self._services
        return nexus.CallContext(info, services.client, services.registry, self._shutdown, callback)

    async def _start(self, task: Any) -> Any:
        request = task.task.request.start_operation
        operation = self._operation(request)
        context = self._context(task, request, _callback(request))
        response: Any = StartOperationResponse()
        try:
            value = await self._run(operation, payload_from(request.payload), context)
            if isinstance(value, nexus.OperationHandle):
                response.async_success.operation_token = value.token
                response.async_success.links.extend(_links_to(value, request.request_id))
            else:
                put_payload(response.sync_success.payload, await self._encode_result(value, context.info))
        except nexus.OperationError as error:
            put_failure(response.failure, await self._operation_failure(error, context.info))
        return response

    async def _run(self, operation: Any, payload: Any, context: nexus.CallContext) -> Any:
        try:
            arguments = await asyncio.to_thread(
                _decode_arguments, self._services, operation, payload, context.info
            )
        except PayloadError as error:
            raise nexus.HandlerError(str(error), type="BAD_REQUEST", retryable=False) from error
        call = nexus.ExecuteNexusOperationStartInput(
            operation=operation, args=arguments, headers=dict(context.info.headers)
        )
        inbound = self._services.inbound
        if inspect.iscoroutinefunction(operation.fn):
            return await self._run_on_loop(context, inbound.execute_async_nexus_operation_start, call)
        return await self._run_in_thread(context, inbound.execute_nexus_operation_start, call)

    async def _cancel(self, task: Any) -> None:
        request = task.task.request.cancel_operation
        operation = self._operation(request)
        try:
            handle = nexus.OperationHandle.from_token(request.operation_token)
        except UsageError as error:
            raise nexus.HandlerError(str(error), type="BAD_REQUEST", retryable=False) from error
        if handle.namespace != self._names["namespace"]:
            raise nexus.HandlerError("the operation belongs to another namespace", type="NOT_FOUND")
        context = self._context(task, request)
        call = nexus.ExecuteNexusOperationCancelInput(
            operation=operation, handle=handle, headers=dict(context.info.headers)
        )
        inbound = self._services.inbound
        if inspect.iscoroutinefunction(operation.cancel_fn):
            await self._run_on_loop(context, inbound.execute_async_nexus_operation_cancel, call)
        else:
            await self._run_in_thread(context, inbound.execute_nexus_operation_cancel, call)

    async def _run_in_thread(self, context: nexus.CallContext, fn: Callable[[Any], Any], call: Any) -> Any:
        variables = contextvars.copy_context()
        variables.run(nexus.current.set, context)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._services.executor, lambda: variables.run(fn, call))

    async def _run_on_loop(
        self, context: nexus.CallContext, fn: Callable[[Any], Coroutine[Any, Any, Any]], call: Any
    ) -> Any:
        async def inside() -> Any:
            nexus.current.set(context)
            return await fn(call)

        return await asyncio.wrap_future(submit(inside(), "nexus"))

    async def _encode_result(self, value: Any, info: nexus.Info) -> Any:
        converter, codec = _converters_for(self._services, info)

        def encode() -> Any:
            payload = converter.encode(value)
            return payload if codec is None else seal(payload, codec, converter)

        return await asyncio.to_thread(encode)

    async def _operation_failure(self, error: nexus.OperationError, info: nexus.Info) -> Any:
        ended: BaseException = (
            CancelledError(str(error))
            if error.canceled
            else ApplicationError(str(error), type="OperationError", non_retryable=True)
        )
        ended.__cause__ = error.__cause__
        return await self._encode_error(ended, info)

    async def _encode_error(self, error: BaseException, info: nexus.Info) -> Any:
        converter, codec = _converters_for(self._services, info)
        failure = converter.to_failure(error)
        if codec is None:
            return failure
        return await asyncio.to_thread(seal, failure, codec, converter)

    async def _put_error(self, completion: Any, error: BaseException, task: Any) -> None:
        failure = completion.failure
        cause: BaseException | None = error
        if isinstance(error, nexus.HandlerError):
            failure.message, cause = str(error), error.__cause__
        else:
            logger.warning("a Nexus operation raised an exception: %s", type(error).__name__, exc_info=error)
            failure.message = f"the operation raised {type(error).__name__}"
        kind, retryable = _classify(error)
        failure.nexus_handler_failure_info.type = kind
        if retryable is not None:
            failure.nexus_handler_failure_info.retry_behavior = _RETRYABLE if retryable else _FINAL
        if cause is not None:
            try:
                request = task.task.request
                call = (
                    request.start_operation
                    if request.HasField("start_operation")
                    else request.cancel_operation
                )
                info = self._context(task, call).info
                put_failure(failure.cause, await self._encode_error(cause, info))
            except Exception:  # the failure is reported without its cause
                logger.exception("the cause of a Nexus failure could not be encoded")


_STATUSES: dict[str, tuple[str, bool | None]] = {
    "INVALID_ARGUMENT": ("BAD_REQUEST", None),
    "ALREADY_EXISTS": ("INTERNAL", False),
    "FAILED_PRECONDITION": ("INTERNAL", False),
    "OUT_OF_RANGE": ("INTERNAL", False),
    "ABORTED": ("UNAVAILABLE", None),
    "UNAVAILABLE": ("UNAVAILABLE", None),
    "NOT_FOUND": ("NOT_FOUND", None),
    "RESOURCE_EXHAUSTED": ("RESOURCE_EXHAUSTED", None),
    "UNIMPLEMENTED": ("NOT_IMPLEMENTED", None),
    "DEADLINE_EXCEEDED": ("UPSTREAM_TIMEOUT", None),
}
"""The Nexus error type, and whether to retry, for the gRPC status of a failed call that the operation made. The
same as in Temporal's SDKs. Authentication errors are not listed, because they are caused by the handler and not
by the caller, and are retried.
"""


def _classify(error: BaseException) -> tuple[str, bool | None]:
    """Return the error type for the caller's server, and whether to retry. None means the default of the error
    type.
    """
    match error:
        case nexus.HandlerError():
            return error.type, error.retryable
        case ApplicationError():
            return "INTERNAL", False if error.non_retryable else None
        case WorkflowAlreadyStartedError():
            return "INTERNAL", False
        case ServiceError():
            return _STATUSES.get(error.status, ("INTERNAL", None))
        case _:
            return "INTERNAL", None


_EVENT: Any = Link.WorkflowEvent
_EVENT_LINK = _EVENT.DESCRIPTOR.full_name
_HISTORY = re.compile(r"/namespaces/([^/]+)/workflows/([^/]+)/([^/]+)/history")
_EVENTS = frozenset(EventType.keys())
_STARTED = "WorkflowExecutionStarted"


def _callback(request: Any) -> nexus.NexusCallback | None:
    if not request.callback:
        return None
    links = [_link_from(link) for link in request.links]
    return nexus.NexusCallback(
        url=request.callback,
        headers=dict(request.callback_header),
        links=tuple(link for link in links if link is not None),
    )


def _link_from(link: Any) -> bytes | None:
    """Return a call's link in the encoding that the server expects at a start. Return None for an unknown kind
    of link.
    """
    url = urllib.parse.urlparse(link.url)
    match = _HISTORY.fullmatch(url.path)
    if link.type != _EVENT_LINK or url.scheme != "temporal" or match is None:
        return None
    namespace, workflow_id, run_id = map(urllib.parse.unquote, match.groups())
    parameters = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
    event = _EVENT(namespace=namespace, workflow_id=workflow_id, run_id=run_id)
    name = parameters.get("eventType", "")
    if not name.startswith("EVENT_TYPE_"):
        name = "EVENT_TYPE" + re.sub("([A-Z])", r"_\1", name).upper()
    kind = EventType.Value(name) if name in _EVENTS else 0
    if parameters.get("referenceType") == "RequestIdReference":
        event.request_id_ref.request_id, event.request_id_ref.event_type = (
            parameters.get("requestID", ""),
            kind,
        )
    else:
        number = parameters.get("eventID", "0")
        event.event_ref.event_id = int(number) if number.isdigit() else 0
        event.event_ref.event_type = kind
    encoded: bytes = Link(workflow_event=event).SerializeToString()
    return encoded


def _links_to(handle: nexus.OperationHandle[Any], request_id: str) -> list[Any]:
    """Return links from the caller's history to the started workflow."""
    if not handle.workflow_id or not handle.run_id:
        return []
    parts = (handle.namespace, "workflows", handle.workflow_id, handle.run_id)
    path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
    reference = {"eventType": _STARTED, "referenceType": "RequestIdReference", "requestID": request_id}
    url = f"temporal:///namespaces/{path}/history?{urllib.parse.urlencode(reference)}"
    return [NexusLink(url=url, type=_EVENT_LINK)]


def _converters_for(services: NexusServices, info: nexus.Info) -> tuple[Converter, Codec | None]:
    """Return the converter and codec for an operation's values."""
    context = NexusSerializationContext(info.endpoint, info.service, info.operation)
    codec = services.codec
    return in_context(services.converter, context), None if codec is None else in_context(codec, context)


def _decode_arguments(services: NexusServices, operation: Any, payload: Any, info: nexus.Info) -> list[Any]:
    """Decode the arguments of a call by the types of its function."""
    converter, codec = _converters_for(services, info)
    opened = payload if codec is None else unseal(payload, codec, converter)
    if not operation.signature.parameters:
        return []
    return [converter.decode(opened, operation.signature.types[0])]
