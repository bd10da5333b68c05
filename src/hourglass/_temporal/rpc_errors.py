"""Conversion of errors of the server and of the connection to Hourglass errors, with the rejected request, the
reason, and a remedy. Pure.
"""

from __future__ import annotations

import re
from typing import Any

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
from hourglass._contract.deployments import DescribeNamespace
from hourglass._contract.schedules import CreateSchedule
from hourglass.errors import (
    ActivityAlreadyStartedError,
    ActivityNotFoundError,
    ConnectionFailedError,
    HourglassError,
    NamespaceNotFoundError,
    QueryFailedError,
    ScheduleAlreadyExistsError,
    ScheduleNotFoundError,
    ServiceError,
    ServiceStatus,
    ServiceTimeoutError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)

STATUS: tuple[str, ...] = tuple(status.value for status in ServiceStatus)
"""Names of gRPC's status codes, by number."""


class RpcFailure:
    """The content of an RPC error: the name of its status, a message, and encoded details."""

    def __init__(self, code: int, message: str, details: bytes) -> None:
        self.status = STATUS[code] if 0 <= code < len(STATUS) else "UNKNOWN"
        self.message = message
        self._details = details

    def detail(self, kind: type[Any]) -> Any | None:
        """Return the first detail of the error if it is of this kind, or else None."""
        try:
            status = GrpcStatus.FromString(self._details)
        except Exception:  # details are optional: without them, only the message is used
            return None
        detail = kind()
        return detail if status.details and status.details[0].Unpack(detail) else None

    def of_parts(self) -> list[RpcFailure]:
        """Return the errors of the parts of a multi-operation request. Parts that were aborted because another
        part failed are omitted.
        """
        failure = self.detail(MultiOperationExecutionFailure)
        statuses = [] if failure is None else failure.statuses
        return [
            RpcFailure(part.code, part.message, GrpcStatus(details=part.details).SerializeToString())
            for part in statuses
            if part.code and STATUS[part.code] != "ABORTED"
        ]


def no_namespace(namespace: str, target: str) -> NamespaceNotFoundError:
    """Return the error for a namespace that the server does not have."""
    return NamespaceNotFoundError(
        f"the server at {target} has no namespace {namespace!r}. Create the namespace with `temporal operator namespace "
        f"create -n {namespace} --address {target}`, or check its name (on Temporal Cloud, the name ends with the "
        "account id)",
        status="NOT_FOUND",
    )


def error_for(failure: RpcFailure, request: sv.Request[Any], namespace: str, target: str) -> HourglassError:
    """Return the exception for a rejected request."""
    if isinstance(request, wf.UpdateWithStart):
        parts = failure.of_parts()
        at_start = parts and parts[0].detail(WorkflowExecutionAlreadyStartedFailure) is not None
        part = request.start if at_start else request.update
        return error_for(parts[0] if parts else failure, part, namespace, target)
    match failure.status:
        case "NOT_FOUND":
            return _not_found(failure, request, namespace, target)
        case "ALREADY_EXISTS":
            return _exists(failure, request)
        case "INVALID_ARGUMENT" if isinstance(request, wf.QueryWorkflow):
            return QueryFailedError(failure.message)
        case "DEADLINE_EXCEEDED" | "CANCELLED":
            return too_late(request, target)
        case "UNAVAILABLE":
            return ConnectionFailedError(
                f"the server at {target} cannot be reached: {failure.message}", status=failure.status
            )
        case "PERMISSION_DENIED" | "UNAUTHENTICATED":
            return denied(failure.status, failure.message, namespace, target)
        case _:
            return ServiceError(
                f"{_name(request)} was rejected: {failure.message} ({failure.status})", status=failure.status
            )


def denied(status: str, message: str, namespace: str, target: str) -> ServiceError:
    """Return the error for denied access."""
    return ServiceError(
        f"the server at {target} denies access to the namespace {namespace!r}: {message or status}. Check that the API "
        "key or TLS certificate is valid and has access to this namespace",
        status=status,
    )


def too_late(request: sv.Request[Any], target: str) -> ServiceTimeoutError:
    """Return the error for a request that the server did not answer in time."""
    hint = ""
    if isinstance(request, wf.QueryWorkflow):
        hint = (
            ". Queries are answered by a worker: check that a worker of the workflow's task queue is running"
        )
    return ServiceTimeoutError(
        f"the server at {target} did not answer {_name(request)} in time{hint}", status="DEADLINE_EXCEEDED"
    )


def _not_found(failure: RpcFailure, request: sv.Request[Any], namespace: str, target: str) -> HourglassError:
    if isinstance(request, DescribeNamespace) or failure.detail(NamespaceNotFoundFailure) is not None:
        return no_namespace(namespace, target)
    if isinstance(request, (ac.CompleteActivity, ac.HeartbeatActivity)):
        return ServiceError(
            "this activity is no longer pending: it has ended, timed out or been cancelled, or its "
            f"workflow has closed ({failure.message})",
            status=failure.status,
        )
    if schedule_id := getattr(request, "schedule_id", ""):
        return ScheduleNotFoundError(
            f"schedule {schedule_id!r} does not exist in namespace {namespace!r}", status=failure.status
        )
    workflow_id = getattr(request, "workflow_id", "")
    if not workflow_id and (activity_id := getattr(request, "activity_id", "")):
        return ActivityNotFoundError(
            f"activity {activity_id!r} does not exist or has ended (namespace {namespace!r}): {failure.message}",
            status=failure.status,
        )
    if not workflow_id:
        return ServiceError(
            f"{_name(request)} failed, because its target was not found: {failure.message}",
            status=failure.status,
        )
    run = f" (run {request.run_id})" if getattr(request, "run_id", "") else ""  # type: ignore[attr-defined]
    return WorkflowNotFoundError(
        f"workflow {workflow_id!r}{run} does not exist or has closed (namespace {namespace!r}): {failure.message}",
        status=failure.status,
    )


def _exists(failure: RpcFailure, request: sv.Request[Any]) -> HourglassError:
    if isinstance(request, CreateSchedule):
        return ScheduleAlreadyExistsError(
            f"schedule {request.schedule_id!r} already exists", schedule_id=request.schedule_id
        )
    if isinstance(request, ac.StartActivity):
        detail = failure.detail(ActivityExecutionAlreadyStartedFailure)
        run_id = "" if detail is None else detail.run_id
        return ActivityAlreadyStartedError(
            f"activity {request.activity_id!r} has already started (run {run_id})",
            activity_id=request.activity_id,
            activity_type=request.activity_type,
            run_id=run_id,
        )
    detail = failure.detail(WorkflowExecutionAlreadyStartedFailure)
    if not isinstance(request, (wf.StartWorkflow, wf.ImportWorkflow)) or detail is None:
        return ServiceError(f"{_name(request)} was rejected: {failure.message}", status=failure.status)
    return WorkflowAlreadyStartedError(
        f"workflow {request.workflow_id!r} has already started (run {detail.run_id})",
        workflow_id=request.workflow_id,
        workflow_type=getattr(request, "workflow_type", ""),
        run_id=detail.run_id,
    )


def _name(request: sv.Request[Any]) -> str:
    subject = getattr(request, "workflow_id", "") or getattr(request, "schedule_id", "")
    return f"{type(request).__name__}({subject!r})" if subject else type(request).__name__


_SYSTEM_MESSAGE = re.compile(
    r'(?:code: \d+, kind: \w+, message: "|error: "failed to lookup address information: )([^"]+)"'
)
_STATUS = re.compile(r"code: '?([A-Za-z ]+)")

# Core's messages about TLS and other protocols, with explanations.
_TRANSPORT_PROBLEMS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            r"UnknownIssuer|CaUsedAsEndEntity|BadSignature",
            "the server's TLS certificate is signed by an untrusted authority. Pass the certificate of that authority "
            "in PEM format: TLSConfig(server_root_ca_cert=…) or TEMPORAL_TLS_SERVER_CA_CERT_PATH",
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
            "the server's TLS certificate is not valid for the name of the target{names}. Connect with a name from the "
            "certificate, or pass TLSConfig(domain=…)",
        ),
        (r"InvalidCertificate", "the server's TLS certificate cannot be accepted ({detail})"),
        (
            r"fatal alert: (?:CertificateRequired|HandshakeFailure)",
            "the server requires a client certificate: pass TLSConfig(client_cert=…, client_private_key=…)",
        ),
        (
            r"fatal alert: (?:BadCertificate|UnknownCA|CertificateUnknown|CertificateExpired|CertificateRevoked|AccessDenied)",
            "the server rejected the client's TLS certificate ({detail})",
        ),
        (r"fatal alert", "the server aborted the TLS handshake ({detail})"),
        (
            r"InvalidContentType|CorruptMessage",
            "the server does not use TLS on this port. Connect without TLS (tls=False, and no API key), or use another "
            "port",
        ),
        (
            r"PrivateKeyParseError|CertificateParseError|InconsistentKeys|KeyMismatch",
            "the client's TLS certificate or private key cannot be read: both must be in PEM format and belong together",
        ),
        (
            r'hyper::Error\(Canceled, "connection closed"\)|hyper::Error\(Http2|connection closed before|h2 protocol error'
            r"|Io, (?:Kind\(|Custom \{ kind: )(?:ConnectionReset|BrokenPipe|UnexpectedEof)",
            "the server closed the connection, or does not speak gRPC. Check whether it needs TLS (tls=True, or an API "
            "key), and whether the port is the gRPC port (7233), not that of the web UI",
        ),
    )
)
_CERTIFICATE_NAMES = re.compile(r'DnsName\(\\*"([^"\\]+)\\*"\)')
_TLS_DETAIL = re.compile(r"(?:InvalidCertificate\(|fatal alert: )(\w+)")


def explain_transport(reason: str) -> str | None:
    """Explain Core's message about TLS or the protocol. Return None for any other message."""
    for pattern, explanation in _TRANSPORT_PROBLEMS:
        if pattern.search(reason):
            names = _CERTIFICATE_NAMES.findall(reason.partition("presented")[2])
            detail = _TLS_DETAIL.search(reason)
            return explanation.format(
                names=f" (valid names: {', '.join(names)})" if names else "",
                detail=detail.group(1) if detail else "TLS",
            )
    return None


def unreachable(target: str, reason: str) -> ConnectionFailedError:
    """Return the error for a server that does not answer."""
    return ConnectionFailedError(
        f"cannot connect to a Temporal server at {target}: {reason}. Check the address, or start one with "
        "`temporal server start-dev`",
        status="UNAVAILABLE",
    )


def connection_error(reason: str, target: str, namespace: str) -> ServiceError:
    """Return the error for a failed connection, from the reason that Core reports."""
    reason = " ".join(reason.removeprefix("Failed client connect: ").split())
    status = _STATUS.search(reason)
    status_name = status.group(1).strip().lower().replace(" ", "") if status else ""
    if status_name in ("permissiondenied", "unauthenticated") or "caller does not have permission" in reason:
        kind = "UNAUTHENTICATED" if status_name == "unauthenticated" else "PERMISSION_DENIED"
        return denied(kind, "", namespace, target)
    explanation = explain_transport(reason)
    if explanation is not None:
        return ConnectionFailedError(
            f"cannot connect to a Temporal server at {target}: {explanation}", status="UNAVAILABLE"
        )
    system_message = _SYSTEM_MESSAGE.search(
        reason
    )  # the message of the operating system, which Core's message quotes
    return unreachable(target, system_message.group(1).lower() if system_message else reason[:300])
