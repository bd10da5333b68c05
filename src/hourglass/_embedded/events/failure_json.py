"""Payloads and failures in Temporal's JSON form.

Must not know: events, runs. The rules are protobuf's: see `history_json`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, TypeAlias

from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    FailureInfo,
    Payload,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)

Json: TypeAlias = dict[str, Any]


def payload_json(payload: Payload) -> Json:
    """One payload."""
    metadata = dict(payload.metadata or {})
    if payload.encoding:
        metadata["encoding"] = payload.encoding.encode()
    document: Json = {"metadata": {key: b64encode(value).decode() for key, value in metadata.items()}}
    if payload.data:
        document["data"] = b64encode(payload.data).decode()
    return document


def payloads_json(payloads: tuple[Payload, ...]) -> Json | None:
    """Several payloads; None for none at all."""
    return {"payloads": [payload_json(payload) for payload in payloads]} if payloads else None


def failure_json(failure: Failure) -> Json:
    """A failure and its causes."""
    document: Json = {"message": failure.message}
    if failure.source:
        document["source"] = failure.source
    if failure.stack_trace:
        document["stackTrace"] = failure.stack_trace
    if failure.encoded_attributes is not None:
        document["encodedAttributes"] = payload_json(failure.encoded_attributes)
    if failure.cause is not None:
        document["cause"] = failure_json(failure.cause)
    if failure.info is not None:
        document.update(_info(failure.info))
    return document


def _info(info: FailureInfo) -> Json:
    match info:
        case ApplicationFailure():
            return {"applicationFailureInfo": _application(info)}
        case TimeoutFailure():
            timed_out = {"timeoutType": f"TIMEOUT_TYPE_{info.type.name}"}
            return {
                "timeoutFailureInfo": timed_out
                | _some("lastHeartbeatDetails", payloads_json(info.last_heartbeat_details))
            }
        case CanceledFailure():
            return {"canceledFailureInfo": _some("details", payloads_json(info.details))}
        case TerminatedFailure():
            return {"terminatedFailureInfo": {}}
        case ServerFailure():
            return {"serverFailureInfo": {"nonRetryable": info.non_retryable}}
        case ResetFailure():
            details = _some("lastHeartbeatDetails", payloads_json(info.last_heartbeat_details))
            return {"resetWorkflowFailureInfo": details}
        case ActivityFailure():
            return {"activityFailureInfo": _activity(info)}
        case ChildWorkflowFailure():
            return {"childWorkflowExecutionFailureInfo": _child(info)}


def _application(info: ApplicationFailure) -> Json:
    document: Json = {"type": info.type, "nonRetryable": info.non_retryable}
    if info.next_retry_delay is not None:
        document["nextRetryDelay"] = f"{info.next_retry_delay:.9f}s"
    if info.category:
        document["category"] = info.category
    return document | _some("details", payloads_json(info.details))


def _activity(info: ActivityFailure) -> Json:
    return {
        "scheduledEventId": str(info.scheduled_event_id),
        "startedEventId": str(info.started_event_id),
        "identity": info.identity,
        "activityType": {"name": info.activity_type},
        "activityId": info.activity_id,
        "retryState": f"RETRY_STATE_{info.retry_state.name}",
    }


def _child(info: ChildWorkflowFailure) -> Json:
    return {
        "namespace": info.namespace,
        "workflowExecution": {"workflowId": info.workflow_id, "runId": info.run_id},
        "workflowType": {"name": info.workflow_type},
        "initiatedEventId": str(info.initiated_event_id),
        "startedEventId": str(info.started_event_id),
        "retryState": f"RETRY_STATE_{info.retry_state.name}",
    }


def _some(key: str, value: Json | None) -> Json:
    return {} if value is None else {key: value}
