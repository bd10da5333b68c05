"""The connection to a Temporal server: requests of clients, handles of workers. `rpc_errors` converts RPC errors
to Hourglass errors.

All code of a connection runs on one event loop. The loop must outlive the connection, because Core's futures
belong to this loop.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
from asyncio import sleep
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
import temporalio.api.workflowservice.v1 as ws

from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import HandleConfig, WorkKind
from hourglass._contract.limits import KeptLimits, ListLimits
from hourglass._contract.transport import USUAL, TLSConfig, Transport
from hourglass._temporal import (
    calls,
    calls_activities,
    calls_schedules,
    calls_views,
    core,
    importing,
    version,
)
from hourglass._temporal.configs import NO_METADATA, check_target, client_settings, worker_settings
from hourglass._temporal.handle import CoreHandle
from hourglass._temporal.rpc_errors import (
    RpcFailure,
    connection_error,
    denied,
    error_for,
    no_namespace,
    too_late,
    unreachable,
)
from hourglass._temporal.telemetry import FETCH_EVERY
from hourglass.errors import (
    ConnectionFailedError,
    HourglassError,
    InternalError,
    ServiceError,
    ServiceTimeoutError,
    TargetError,
)
from hourglass.metrics import Family

CALLS: dict[type[sv.Request[Any]], Callable[[Any, calls.CallScope], calls.Rpc]] = {
    **calls.CHANGE_CALLS,
    **calls_views.VIEW_CALLS,
    **calls_schedules.ON_SCHEDULES,
    **calls_activities.ON_ACTIVITIES,
}


async def perform(client: core.Ref, request: sv.Request[Any], scope: calls.CallScope, target: str) -> Any:
    """Send a request and return the answer. Raise `ServiceError` (or a subclass) or `QueryFailedError` on failure."""
    if isinstance(request, wf.ImportWorkflow):
        return await importing.import_workflow(
            lambda call: _send(client, call, request, scope, target), request, scope
        )
    if isinstance(request, wf.ExecuteWorkflow):
        start = msgspec.structs.replace(
            request.start, rpc_timeout=request.rpc_timeout, rpc_metadata=request.rpc_metadata
        )
        started = await perform(client, start, scope, target)
        return wf.Executed(started.run_id, wf.StillOpen(started.run_id))
    if isinstance(request, ListLimits):
        return KeptLimits()  # a Temporal server stores no limits; workflows implement them
    plan = CALLS.get(type(request))
    if plan is None:
        raise InternalError(f"no Temporal RPC for the request {type(request).__name__}")
    call = plan(request, scope)
    answer = await _send(client, call, request, scope, target)
    return answer if answer is call.late else call.read(answer)


async def _send(
    client: core.Ref, call: calls.Rpc, request: sv.Request[Any], scope: calls.CallScope, target: str
) -> Any:
    """Send a message and return the server's answer, or `call.late` if it is set and the call times out."""
    message_type: Any = type(call.message)
    kind = calls.rpc_kind(message_type)
    try:
        data = await core.call(
            client,
            kind.name,
            call.message.SerializeToString(),
            call.timeout if request.rpc_timeout is None else request.rpc_timeout,
            retry=call.retry,
            metadata=request.rpc_metadata or NO_METADATA,
            service=kind.service,
        )
        return kind.answer.FromString(data)
    except TimeoutError:
        if call.late is not None:
            return call.late
        raise too_late(request, target) from None
    except core.RpcError as error:
        failure = RpcFailure(*error.args)
        if call.late is not None and failure.status in ("DEADLINE_EXCEEDED", "CANCELLED"):
            return call.late
        raise error_for(failure, request, scope.namespace, target) from None


def raw_service(name: str, rpc: sv.RawRpc) -> Any:
    """Return the service class that temporalio generates, with one method per RPC that takes and returns messages."""
    services = importlib.import_module("temporalio.bridge.services_generated")
    return getattr(services, f"{name.capitalize()}Service")(_RawCaller(rpc))


class _RawCaller:
    """Adapter from the generated services to `RawRpc`."""

    def __init__(self, rpc: sv.RawRpc) -> None:
        self._rpc = rpc

    async def _rpc_call(
        self,
        rpc: str,
        req: Any,
        resp_type: Any,
        *,
        service: str,
        retry: bool,
        metadata: Mapping[str, str | bytes],
        timeout: timedelta | float | None,
    ) -> Any:
        limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        return await self._rpc(
            sv.RawCall(
                service=service,
                rpc=rpc,
                message=req,
                answer=resp_type,
                retry=retry,
                metadata=metadata,
                timeout=limit,
            )
        )


A = TypeVar("A")

DEADLINE = 10.0
"""The timeout in seconds to connect, and to open a handle."""

# A server that is starting accepts connections before it serves requests.
_STARTING = "not healthy yet"


async def connect(
    target: str,
    *,
    namespace: str = "default",
    tls: TLSConfig | bool | None = None,
    api_key: str | None = None,
    rpc_metadata: Mapping[str, str | bytes] | None = None,
    identity: str = "",
    timeout: float = DEADLINE,
    transport: Transport = USUAL,
) -> TemporalConnection:
    """Connect to `host:port` and check that the namespace exists, within `timeout` seconds.

    Raises `TargetError`, `ConnectionFailedError`, `NamespaceNotFoundError`, or `ServiceError` if access is denied.
    """
    check_target(target)
    if not namespace:
        raise TargetError('the namespace must not be empty; the usual namespace is "default"')
    identity = identity or f"{os.getpid()}@{socket.gethostname()}"
    settings = client_settings(
        target,
        version=version.installed() or "unknown",
        identity=identity,
        tls=tls,
        api_key=api_key,
        rpc_metadata=rpc_metadata or {},
        timeout=timeout,
        transport=transport,
    )
    try:
        # Core's own timeout has no effect if the peer accepts the connection and stays silent.
        async with asyncio.timeout(timeout):
            while True:
                try:
                    client = await core.connect(settings)
                    break
                except RuntimeError as error:
                    if _STARTING not in str(error):
                        raise
                await sleep(0.1)
            connection = TemporalConnection(client, target, namespace, identity)
            await connection.check_namespace(timeout)
            return connection
    except TimeoutError:
        raise unreachable(target, f"no answer within {timeout:g} s") from None
    except RuntimeError as error:
        raise connection_error(str(error), target, namespace) from None
    except ValueError as error:
        raise TargetError(f"invalid configuration of the connection to {target}: {error}") from None


class TemporalConnection:
    """An open connection to a server, for one namespace."""

    def __init__(self, client: core.Ref, target: str, namespace: str, identity: str) -> None:
        self._client = client
        self._target = target
        self._scope = calls.CallScope(namespace, identity)
        self._disposals: set[asyncio.Task[None]] = set()
        self._fetching: asyncio.TimerHandle | None = None
        self._fetch_metrics()

    def _fetch_metrics(self) -> None:
        """Fetch Core's metrics now and every few seconds, because Core's buffer is small. Do nothing if Core
        buffers no metrics.
        """
        if core.metrics() is not None and not self._client.gone:
            self._fetching = asyncio.get_running_loop().call_later(FETCH_EVERY, self._fetch_metrics)

    def status(self) -> EngineStatus:
        """Return the defaults, because a server does not report its state here."""
        return EngineStatus()

    def metrics(self) -> list[Family]:
        """Return the metrics that Core has recorded in this process."""
        recorded = core.metrics()
        return [] if recorded is None else recorded.families()

    def __repr__(self) -> str:
        return f"TemporalConnection({self._target!r}, namespace={self.namespace!r})"

    @property
    def target(self) -> str:
        """The server's address, without secrets."""
        return self._target

    @property
    def namespace(self) -> str:
        """The namespace of all requests."""
        return self._scope.namespace

    @property
    def identity(self) -> str:
        """The identity that the server sees in requests and polls."""
        return self._scope.identity

    async def call(self, request: sv.Request[A]) -> A:
        """Send a request and return its answer."""
        self._check_open()
        answer: A = await perform(self._client, request, self._scope, self._target)
        return answer

    def set_api_key(self, api_key: str | None) -> None:
        """Set the API key for subsequent calls."""
        self._check_open()
        core.set_api_key(self._client, api_key)

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Set the RPC headers for subsequent calls. All previous headers are removed."""
        self._check_open()
        core.set_metadata(self._client, metadata)

    async def rpc(self, call: sv.RawCall) -> Any:
        """Send a message to a service of the server and return its answer."""
        self._check_open()
        try:
            data = await core.call(
                self._client,
                call.rpc,
                call.message.SerializeToString(),
                call.timeout,
                retry=call.retry,
                metadata=call.metadata,
                service=call.service,
            )
        except TimeoutError:
            raise ServiceTimeoutError(
                f"the server at {self._target} did not answer {call.rpc} in time", status="DEADLINE_EXCEEDED"
            ) from None
        except core.RpcError as error:
            failure = RpcFailure(*error.args)
            raise ServiceError(
                f"{call.rpc} was rejected: {failure.message} ({failure.status})", status=failure.status
            ) from None
        return call.answer.FromString(data)

    async def check_namespace(self, timeout: float = DEADLINE) -> None:
        """Raise `NamespaceNotFoundError` if the server does not have this namespace."""
        message = ws.DescribeNamespaceRequest(namespace=self.namespace)
        try:
            await core.call(self._client, "describe_namespace", message.SerializeToString(), timeout)
        except core.RpcError as error:
            failure = RpcFailure(*error.args)
            match failure.status:
                case "NOT_FOUND":
                    raise no_namespace(self.namespace, self._target) from None
                case "PERMISSION_DENIED" | "UNIMPLEMENTED":
                    return  # a key may be allowed to use a namespace but not to describe it
                case "UNAUTHENTICATED":
                    raise denied(failure.status, failure.message, self.namespace, self._target) from None
                case "INVALID_ARGUMENT":
                    raise TargetError(f"invalid namespace {self.namespace!r}: {failure.message}") from None
                case _:
                    raise unreachable(self._target, f"{failure.message} ({failure.status})") from None

    async def open_handle(self, config: HandleConfig) -> CoreHandle:
        """Open a handle for a task queue. Raises `ServiceError` if Core or the server rejects it."""
        self._check_open()
        settings = worker_settings(self.namespace, config, self.identity)
        try:
            worker = core.new_worker(self._client, settings)
        except (RuntimeError, ValueError) as error:
            raise ServiceError(
                f"a worker for the task queue {config.task_queue!r} could not be registered: {error}",
                status="FAILED_PRECONDITION",
            ) from None
        handle = CoreHandle(worker, config, self.namespace)
        try:
            async with asyncio.timeout(DEADLINE):
                await core.validate(worker)
        except BaseException as error:
            self._dispose(handle)
            if isinstance(error, TimeoutError):
                raise unreachable(self._target, f"no answer within {DEADLINE:g} s") from None
            if isinstance(error, RuntimeError):
                raise ServiceError(
                    f"a worker for the task queue {config.task_queue!r} could not be registered: {error}",
                    status="UNKNOWN",
                ) from None
            raise
        handle.serve_nexus()
        return handle

    async def close(self) -> None:
        """Drop the client. Handles that were not finalized remain open for a while."""
        if self._fetching is not None:
            self._fetching.cancel()
        self._client.drop()

    def _check_open(self) -> None:
        if self._client.gone:
            raise ConnectionFailedError(
                f"the connection to {self._target} is closed, or was inherited through a fork",
                status="UNAVAILABLE",
            )

    def _dispose(self, handle: CoreHandle) -> None:
        task = asyncio.get_running_loop().create_task(_discard(handle))
        self._disposals.add(task)
        task.add_done_callback(self._disposals.discard)


async def _discard(handle: CoreHandle) -> None:
    """Shut down a handle that was never used. A handle that is only dropped would keep polling and lose tasks."""
    ends: dict[WorkKind, Exception] = {}
    ended = asyncio.Event()

    def on_end(kind: WorkKind, why: Exception) -> None:
        ends[kind] = why
        if len(ends) == len(WorkKind):
            ended.set()

    handle.start(lambda _: None, lambda _: None, on_end)
    handle.initiate_shutdown()
    await ended.wait()
    try:
        await handle.finalize()
    except HourglassError:
        pass
