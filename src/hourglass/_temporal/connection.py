"""Connect to a Temporal server, and the connection: calls for clients, handles for workers. Each request says which call it
is; what the server refuses becomes an error of ours, which says what was refused, why, and what to do.

Everything here runs on one loop, and that loop must outlive the connection: what Core answers belongs to it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.errordetails.v1 import (
    ActivityExecutionAlreadyStartedFailure,
    MultiOperationExecutionFailure,
    NamespaceNotFoundFailure,
    WorkflowExecutionAlreadyStartedFailure,
)

from hourglass._contract import activities as ac
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._contract.activities import StartActivity
from hourglass._contract.deployments import DescribeNamespace
from hourglass._contract.handle import HandleBroken, HandleConfig, Shutdown
from hourglass._contract.limits import KeptLimits, ListLimits
from hourglass._contract.schedules import CreateSchedule
from hourglass._contract.service import Request
from hourglass._contract.transport import USUAL, TLSConfig, Transport
from hourglass._contract.workflows import UpdateWithStart
from hourglass._temporal import (
    calls,
    calls_activities,
    calls_schedules,
    calls_views,
    core,
    importing,
    version,
)
from hourglass._temporal.calls import CallScope, Rpc
from hourglass._temporal.configs import NO_METADATA, check_target, client_settings, worker_settings
from hourglass._temporal.handle import CoreHandle
from hourglass._temporal.telemetry import FETCH_EVERY
from hourglass.errors import (
    ActivityAlreadyStartedError,
    ActivityNotFoundError,
    ConnectionFailedError,
    HourglassError,
    InternalError,
    NamespaceNotFoundError,
    QueryFailedError,
    ScheduleAlreadyExistsError,
    ScheduleNotFoundError,
    ServiceError,
    ServiceStatus,
    ServiceTimeoutError,
    TargetError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)
from hourglass.metrics import Family

# --- refusals --------------------------------------------------------------------------------------------------------


STATUS: tuple[str, ...] = tuple(each.value for each in ServiceStatus)
"""gRPC's names of its numbers."""


class ServerRefusal:
    """What an RPC error says: the name of its status, a message, and details as encoded messages."""

    def __init__(self, code: int, message: str, details: bytes) -> None:
        self.status = STATUS[code] if 0 <= code < len(STATUS) else "UNKNOWN"
        self.message = message
        self._details = details

    def detail(self, kind: type[Any]) -> Any | None:
        """The first detail, if it is of this kind."""
        try:
            status = GrpcStatus.FromString(self._details)
        except Exception:  # details are a courtesy of the server: without them the message must do
            return None
        found = kind()
        return found if status.details and status.details[0].Unpack(found) else None

    def of_parts(self) -> list[ServerRefusal]:
        """What is said of the parts of a request of several; a part that was given up for another's sake says nothing."""
        whole = self.detail(MultiOperationExecutionFailure)
        statuses = [] if whole is None else whole.statuses
        return [
            ServerRefusal(part.code, part.message, GrpcStatus(details=part.details).SerializeToString())
            for part in statuses
            if part.code and STATUS[part.code] != "ABORTED"
        ]


def no_namespace(namespace: str, target: str) -> NamespaceNotFoundError:
    """The server does not have this namespace."""
    return NamespaceNotFoundError(
        f"the server at {target} has no namespace {namespace!r}. Create it with "
        f"`temporal operator namespace create -n {namespace} --address {target}`, or check the name "
        "(on Temporal Cloud it ends with the account's id)",
        status="NOT_FOUND",
    )


def error_for(
    refusal: ServerRefusal, request: sv.Request[Any], namespace: str, target: str
) -> HourglassError:
    """The error to raise for a refused request."""
    if isinstance(request, UpdateWithStart):
        parts = refusal.of_parts()
        at_start = parts and parts[0].detail(WorkflowExecutionAlreadyStartedFailure) is not None
        part = request.start if at_start else request.update
        return error_for(parts[0] if parts else refusal, part, namespace, target)
    match refusal.status:
        case "NOT_FOUND":
            return _not_found(refusal, request, namespace, target)
        case "ALREADY_EXISTS":
            return _exists(refusal, request)
        case "INVALID_ARGUMENT" if isinstance(request, wf.QueryWorkflow):
            return QueryFailedError(refusal.message)
        case "DEADLINE_EXCEEDED" | "CANCELLED":
            return too_late(request, target)
        case "UNAVAILABLE":
            return ConnectionFailedError(
                f"the server at {target} cannot be reached: {refusal.message}", status=refusal.status
            )
        case "PERMISSION_DENIED" | "UNAUTHENTICATED":
            return denied(refusal.status, refusal.message, namespace, target)
        case _:
            return ServiceError(
                f"{_name(request)} was refused: {refusal.message} ({refusal.status})", status=refusal.status
            )


def denied(status: str, message: str, namespace: str, target: str) -> ServiceError:
    """The server does not let us in."""
    return ServiceError(
        f"the server at {target} refuses access to the namespace {namespace!r}: {message or status}. "
        "Check the API key or the TLS certificate, and that it is allowed to use this namespace",
        status=status,
    )


def too_late(request: sv.Request[Any], target: str) -> ServiceTimeoutError:
    """There was no answer in time."""
    hint = ""
    if isinstance(request, wf.QueryWorkflow):
        hint = ". A query is answered by a worker: does one run on the workflow's task queue?"
    return ServiceTimeoutError(
        f"the server at {target} did not answer {_name(request)} in time{hint}", status="DEADLINE_EXCEEDED"
    )


def _not_found(
    refusal: ServerRefusal, request: sv.Request[Any], namespace: str, target: str
) -> HourglassError:
    if isinstance(request, DescribeNamespace) or refusal.detail(NamespaceNotFoundFailure) is not None:
        return no_namespace(namespace, target)
    if isinstance(request, (ac.CompleteActivity, ac.HeartbeatActivity)):
        return ServiceError(
            "this activity does not wait any more: it has ended, timed out or been cancelled, or its "
            f"workflow has closed ({refusal.message})",
            status=refusal.status,
        )
    if schedule_id := getattr(request, "schedule_id", ""):
        return ScheduleNotFoundError(
            f"there is no schedule {schedule_id!r} in namespace {namespace!r}", status=refusal.status
        )
    workflow_id = getattr(request, "workflow_id", "")
    if not workflow_id and (activity_id := getattr(request, "activity_id", "")):
        return ActivityNotFoundError(
            f"activity {activity_id!r} is not there or has ended, in namespace {namespace!r}: {refusal.message}",
            status=refusal.status,
        )
    if not workflow_id:
        return ServiceError(f"{_name(request)} found nothing: {refusal.message}", status=refusal.status)
    run = f", run {request.run_id}," if getattr(request, "run_id", "") else ""  # type: ignore[attr-defined]
    return WorkflowNotFoundError(
        f"workflow {workflow_id!r}{run} is not there or has closed, in namespace {namespace!r}: "
        f"{refusal.message}",
        status=refusal.status,
    )


def _exists(refusal: ServerRefusal, request: sv.Request[Any]) -> HourglassError:
    if isinstance(request, CreateSchedule):
        return ScheduleAlreadyExistsError(
            f"there is a schedule {request.schedule_id!r} already", schedule_id=request.schedule_id
        )
    if isinstance(request, StartActivity):
        found = refusal.detail(ActivityExecutionAlreadyStartedFailure)
        run_id = "" if found is None else found.run_id
        return ActivityAlreadyStartedError(
            f"activity {request.activity_id!r} has already started (run {run_id})",
            activity_id=request.activity_id,
            activity_type=request.activity_type,
            run_id=run_id,
        )
    detail = refusal.detail(WorkflowExecutionAlreadyStartedFailure)
    if not isinstance(request, (wf.StartWorkflow, wf.ImportWorkflow)) or detail is None:
        return ServiceError(f"{_name(request)} was refused: {refusal.message}", status=refusal.status)
    return WorkflowAlreadyStartedError(
        f"workflow {request.workflow_id!r} has already started (run {detail.run_id})",
        workflow_id=request.workflow_id,
        workflow_type=getattr(request, "workflow_type", ""),
        run_id=detail.run_id,
    )


def _name(request: sv.Request[Any]) -> str:
    which = getattr(request, "workflow_id", "") or getattr(request, "schedule_id", "")
    return f"{type(request).__name__}({which!r})" if which else type(request).__name__


# --- requests --------------------------------------------------------------------------------------------------------


CALLS: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    **calls.ACTING,
    **calls_views.LOOKING,
    **calls_schedules.ON_SCHEDULES,
    **calls_activities.ON_ACTIVITIES,
}


async def perform(client: core.Ref, request: sv.Request[Any], scope: CallScope, target: str) -> Any:
    """Send a request and return its answer. Raises `ServiceError` and its kinds, and `QueryFailedError`."""
    if isinstance(request, wf.ImportWorkflow):

        async def send(rpc: str, message: Any, timeout: float) -> bytes:
            call = Rpc(rpc, message, bytes, timeout, retry=not rpc.startswith("poll_"))
            data: bytes = await _send(client, call, request, scope, target)
            return data

        return await importing.import_workflow(send, request, scope)
    if isinstance(request, ListLimits):
        return KeptLimits()  # a server keeps none itself
    plan = CALLS.get(type(request))
    if plan is None:
        raise InternalError(f"Temporal has no answer to {type(request).__name__}")
    call = plan(request, scope)
    data = await _send(client, call, request, scope, target)
    return data if data is call.late else call.read(data)


async def _send(client: core.Ref, call: Rpc, request: sv.Request[Any], scope: CallScope, target: str) -> Any:
    """Send a message; gives the bytes of the answer, or what the call says where there is none in time."""
    timeout = call.timeout if request.rpc_timeout is None else request.rpc_timeout
    try:
        sent = call.message.SerializeToString()
        return await core.call(
            client,
            call.rpc,
            sent,
            timeout,
            retry=call.retry,
            metadata=request.rpc_metadata or NO_METADATA,
            service=call.service,
        )
    except TimeoutError:
        if call.late is not None:
            return call.late
        raise too_late(request, target) from None
    except core.RpcError as error:
        refusal = ServerRefusal(*error.args)
        if call.late is not None and refusal.status in ("DEADLINE_EXCEEDED", "CANCELLED"):
            return call.late
        raise error_for(refusal, request, scope.namespace, target) from None


# --- raw services ----------------------------------------------------------------------------------------------------


def raw_service(name: str, rpc: sv.RawRpc) -> Any:
    """A service as Temporal generates it: a method for each RPC, which takes and gives its messages."""
    services = importlib.import_module("temporalio.bridge.services_generated")
    return getattr(services, f"{name.capitalize()}Service")(_RawCaller(rpc))


class _RawCaller:
    """What the generated services call."""

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


# --- the connection --------------------------------------------------------------------------------------------------


A = TypeVar("A")

DEADLINE = 10.0
"""Seconds to connect, and to open a handle."""

# A server that is starting accepts connections before it serves them.
_STARTING = "not healthy yet"
_SAID = re.compile(
    r'(?:code: \d+, kind: \w+, message: "|error: "failed to lookup address information: )([^"]+)"'
)
_STATUS = re.compile(r"code: '?([A-Za-z ]+)")

# What TLS, and the lack of it, sounds like in Core, and what it means.
_TRANSPORT: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"UnknownIssuer|CaUsedAsEndEntity|BadSignature",
            "the server's TLS certificate is signed by an authority that is not trusted here. Give the certificate of that "
            "authority, in PEM: TLSConfig(server_root_ca_cert=…), or TEMPORAL_TLS_SERVER_CA_CERT_PATH",
        ),
        (
            r"InvalidCertificate\(Expired",
            "the server's TLS certificate has expired, or the clock of this machine is wrong",
        ),
        (
            r"InvalidCertificate\(NotValidYet",
            "the server's TLS certificate is not valid yet, or the clock of this machine is wrong",
        ),
        (
            r"InvalidCertificate\(NotValidForName",
            "the server's TLS certificate is for another name{names}. Connect by a name that it carries, or say it: "
            "TLSConfig(domain=…)",
        ),
        (r"InvalidCertificate", "the server's TLS certificate cannot be accepted ({detail})"),
        (
            r"fatal alert: (?:CertificateRequired|HandshakeFailure)",
            "the server wants a TLS certificate of ours: TLSConfig(client_cert=…, client_private_key=…)",
        ),
        (
            r"fatal alert: (?:BadCertificate|UnknownCA|CertificateUnknown|CertificateExpired|CertificateRevoked|AccessDenied)",
            "the server does not accept our TLS certificate ({detail})",
        ),
        (r"fatal alert", "the server broke off the TLS handshake ({detail})"),
        (
            r"InvalidContentType|CorruptMessage",
            "the server does not speak TLS at this port. Connect without it (tls=False, and no API key), or to another port",
        ),
        (
            r"PrivateKeyParseError|CertificateParseError|InconsistentKeys|KeyMismatch",
            "our TLS certificate or private key cannot be read: both must be PEM, and belong together",
        ),
        (
            r'hyper::Error\(Canceled, "connection closed"\)|hyper::Error\(Http2|connection closed before|h2 protocol error'
            r"|Io, (?:Kind\(|Custom \{ kind: )(?:ConnectionReset|BrokenPipe|UnexpectedEof)",
            "what listens there closed the connection, or does not speak gRPC. Does the server need TLS (tls=True, or an API "
            "key)? Is the port that of gRPC (7233), not that of the web UI",
        ),
    )
)
_CERTIFICATE_NAMES = re.compile(r'DnsName\(\\*"([^"\\]+)\\*"\)')
_TLS_DETAIL = re.compile(r"(?:InvalidCertificate\(|fatal alert: )(\w+)")


def _transport_trouble(reason: str) -> str | None:
    """What Core says of TLS, in plain words; None where it is about something else."""
    for pattern, words in _TRANSPORT:
        if pattern.search(reason):
            carried = _CERTIFICATE_NAMES.findall(reason.partition("presented")[2])
            detail = _TLS_DETAIL.search(reason)
            return words.format(
                names=f": {', '.join(carried)}" if carried else "",
                detail=detail.group(1) if detail else "TLS",
            )
    return None


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
    """Connect to `host:port` and make sure that the namespace exists, all within `timeout` seconds.

    Raises `TargetError`, `ConnectionFailedError`, `NamespaceNotFoundError`, or `ServiceError` where access is
    refused.
    """
    check_target(target)
    if not namespace:
        raise TargetError("a namespace must have a name, such as default")
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
        # Core's own limit does not hold against a peer that accepts and says nothing.
        async with asyncio.timeout(timeout):
            while True:
                try:
                    client = await core.connect(settings)
                    break
                except RuntimeError as error:
                    if _STARTING not in str(error):
                        raise
                await asyncio.sleep(0.1)
            connection = TemporalConnection(client, target, namespace, identity)
            await connection.check_namespace(timeout)
            return connection
    except TimeoutError:
        raise _unreachable(target, f"no answer within {timeout:g} s") from None
    except RuntimeError as error:
        raise _refused(str(error), target, namespace) from None
    except ValueError as error:
        raise TargetError(f"Core cannot use this configuration for {target}: {error}") from None


def _unreachable(target: str, reason: str) -> ConnectionFailedError:
    return ConnectionFailedError(
        f"cannot connect to a Temporal server at {target}: {reason}. Check the address, or start one with "
        "`temporal server start-dev`",
        status="UNAVAILABLE",
    )


def _refused(reason: str, target: str, namespace: str) -> ServiceError:
    reason = " ".join(reason.removeprefix("Failed client connect: ").split())
    status = _STATUS.search(reason)
    name = status.group(1).strip().lower().replace(" ", "") if status else ""
    if name in ("permissiondenied", "unauthenticated") or "caller does not have permission" in reason:
        kind = "UNAUTHENTICATED" if name == "unauthenticated" else "PERMISSION_DENIED"
        return denied(kind, "", namespace, target)
    plain = _transport_trouble(reason)
    if plain is not None:
        return ConnectionFailedError(
            f"cannot connect to a Temporal server at {target}: {plain}", status="UNAVAILABLE"
        )
    said = _SAID.search(reason)  # what the system said, where Core quotes it among the names of its parts
    return _unreachable(target, said.group(1).lower() if said else reason[:300])


class TemporalConnection:
    """An open connection to a server, for one namespace."""

    def __init__(self, client: core.Ref, target: str, namespace: str, identity: str) -> None:
        self._client = client
        self._target = target
        self._scope = CallScope(namespace, identity)
        self._disposals: set[asyncio.Task[None]] = set()
        self._fetching: asyncio.TimerHandle | None = None
        self._fetch_metrics()

    def _fetch_metrics(self) -> None:
        """Fetch what Core counts, now and every few seconds, if it does: its buffer is not large."""
        if core.metrics() is not None and not self._client.gone:
            self._fetching = asyncio.get_running_loop().call_later(FETCH_EVERY, self._fetch_metrics)

    def families(self) -> list[Family]:
        """What Core has counted in this process."""
        found = core.metrics()
        return [] if found is None else found.families()

    def __repr__(self) -> str:
        return f"TemporalConnection({self._target!r}, namespace={self.namespace!r})"

    @property
    def target(self) -> str:
        """What it is connected to, without secrets."""
        return self._target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._scope.namespace

    @property
    def identity(self) -> str:
        """The identity that the server sees in our requests and polls."""
        return self._scope.identity

    async def call(self, request: Request[A]) -> A:
        """Ask, and wait for the answer."""
        self._check_open()
        answer: A = await perform(self._client, request, self._scope, self._target)
        return answer

    def set_api_key(self, api_key: str | None) -> None:
        """Send this key from now on."""
        self._check_open()
        core.set_api_key(self._client, api_key)

    def set_rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        """Send these headers from now on, and not those of before."""
        self._check_open()
        core.set_metadata(self._client, metadata)

    async def rpc(self, call: sv.RawCall) -> Any:
        """Send a message to a service of the server, and wait for its answer."""
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
            refusal = ServerRefusal(*error.args)
            raise ServiceError(
                f"{call.rpc} was refused: {refusal.message} ({refusal.status})", status=refusal.status
            ) from None
        return call.answer.FromString(data)

    async def check_namespace(self, timeout: float = DEADLINE) -> None:
        """Raise `NamespaceNotFoundError` where the server does not have our namespace."""
        message = ws.DescribeNamespaceRequest(namespace=self.namespace)
        try:
            await core.call(self._client, "describe_namespace", message.SerializeToString(), timeout)
        except core.RpcError as error:
            refusal = ServerRefusal(*error.args)
            match refusal.status:
                case "NOT_FOUND":
                    raise no_namespace(self.namespace, self._target) from None
                case "PERMISSION_DENIED" | "UNIMPLEMENTED":
                    return  # a key may be allowed to work in a namespace and not to describe it
                case "UNAUTHENTICATED":
                    raise denied(refusal.status, refusal.message, self.namespace, self._target) from None
                case "INVALID_ARGUMENT":
                    raise TargetError(
                        f"{self.namespace!r} cannot be a namespace: {refusal.message}"
                    ) from None
                case _:
                    raise _unreachable(self._target, f"{refusal.message} ({refusal.status})") from None

    async def open_handle(self, config: HandleConfig) -> CoreHandle:
        """Open a handle for a task queue. Raises `ServiceError` where Core or the server refuses."""
        self._check_open()
        settings = worker_settings(self.namespace, config, self.identity)
        try:
            worker = core.new_worker(self._client, settings)
        except (RuntimeError, ValueError) as error:
            raise ServiceError(
                f"no handle on the task queue {config.task_queue!r}: {error}", status="FAILED_PRECONDITION"
            ) from None
        handle = CoreHandle(worker, config, self.namespace)
        try:
            async with asyncio.timeout(DEADLINE):
                await core.validate(worker)
        except BaseException as error:
            self._dispose(handle)
            if isinstance(error, TimeoutError):
                raise _unreachable(self._target, f"no answer within {DEADLINE:g} s") from None
            if isinstance(error, RuntimeError):
                raise ServiceError(
                    f"no handle on the task queue {config.task_queue!r}: {error}", status="UNKNOWN"
                ) from None
            raise
        handle.serve_nexus()
        return handle

    async def close(self) -> None:
        """Let go of everything. Handles that were not finalized before live on for a while."""
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
    """End a handle that was never used: merely dropped it goes on polling, and takes tasks with it."""
    handle.initiate_shutdown()
    for poll in (handle.poll_activation, handle.poll_activity):
        try:
            await poll()
        except (Shutdown, HandleBroken):
            pass
    try:
        await handle.finalize_shutdown()
    except HourglassError:
        pass
