"""Every request that a client can make: which call it is, sent through Core. RPC errors become errors of ours, which
say what was refused, why, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from temporalio.api.common.v1 import GrpcStatus
from temporalio.api.errordetails.v1 import (
    MultiOperationExecutionFailure,
    NamespaceNotFoundFailure,
    WorkflowExecutionAlreadyStartedFailure,
)

from hourglass._contract import service as sv
from hourglass._contract.schedules import CreateSchedule
from hourglass._contract.service import DescribeNamespace, UpdateWithStart
from hourglass._temporal import calls, calls_schedules, calls_views, core, importing
from hourglass._temporal.calls import CallScope, Rpc
from hourglass.errors import (
    ConnectionFailedError,
    HourglassError,
    InternalError,
    NamespaceNotFoundError,
    QueryFailedError,
    ScheduleAlreadyExistsError,
    ScheduleNotFoundError,
    ServiceError,
    ServiceTimeoutError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)

# --- refusals --------------------------------------------------------------------------------------------------------


STATUS: tuple[str, ...] = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
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
        case "INVALID_ARGUMENT" if isinstance(request, sv.QueryWorkflow):
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
    if isinstance(request, sv.QueryWorkflow):
        hint = ". A query is answered by a worker: does one run on the workflow's task queue?"
    return ServiceTimeoutError(
        f"the server at {target} did not answer {_name(request)} in time{hint}", status="DEADLINE_EXCEEDED"
    )


def _not_found(
    refusal: ServerRefusal, request: sv.Request[Any], namespace: str, target: str
) -> HourglassError:
    if isinstance(request, DescribeNamespace) or refusal.detail(NamespaceNotFoundFailure) is not None:
        return no_namespace(namespace, target)
    if isinstance(request, (sv.CompleteActivity, sv.HeartbeatActivity)):
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
    detail = refusal.detail(WorkflowExecutionAlreadyStartedFailure)
    if not isinstance(request, (sv.StartWorkflow, sv.ImportWorkflow)) or detail is None:
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
}


async def perform(client: core.Ref, request: sv.Request[Any], scope: CallScope, target: str) -> Any:
    """Send a request and return its answer. Raises `ServiceError` and its kinds, and `QueryFailedError`."""
    if isinstance(request, sv.ImportWorkflow):

        async def send(rpc: str, message: Any, timeout: float) -> bytes:
            call = Rpc(rpc, message, bytes, timeout, retry=not rpc.startswith("poll_"))
            data: bytes = await _send(client, call, request, scope, target)
            return data

        return await importing.import_workflow(send, request, scope)
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
        return await core.call(client, call.rpc, call.message.SerializeToString(), timeout, retry=call.retry)
    except TimeoutError:
        if call.late is not None:
            return call.late
        raise too_late(request, target) from None
    except core.RpcError as error:
        refusal = ServerRefusal(*error.args)
        if call.late is not None and refusal.status in ("DEADLINE_EXCEEDED", "CANCELLED"):
            return call.late
        raise error_for(refusal, request, scope.namespace, target) from None
