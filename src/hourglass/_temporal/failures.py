"""Conversion of failures to Temporal's messages and back. Pure.

A failure of an unknown kind (for example Nexus) is read with `info=None` and keeps its message, stack and cause.
"""

from __future__ import annotations

from typing import Any

from temporalio.api.failure.v1 import (
    ActivityFailureInfo,
    ApplicationFailureInfo,
    CanceledFailureInfo,
    ChildWorkflowExecutionFailureInfo,
    ResetWorkflowFailureInfo,
    ServerFailureInfo,
    TerminatedFailureInfo,
    TimeoutFailureInfo,
)

from hourglass._temporal.protos import payload_from, put_payload
from hourglass._temporal.specs import SpecIn
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)

_DETAILS: dict[str, str | None] = {"details": "details.payloads"}
_HEARTBEAT: dict[str, str | None] = {
    "type": "timeout_type",
    "last_heartbeat_details": "last_heartbeat_details.payloads",
}

_INFOS: dict[str, SpecIn[Any]] = {
    "application_failure_info": SpecIn(ApplicationFailure, ApplicationFailureInfo, _DETAILS),
    "timeout_failure_info": SpecIn(TimeoutFailure, TimeoutFailureInfo, _HEARTBEAT),
    "canceled_failure_info": SpecIn(CanceledFailure, CanceledFailureInfo, _DETAILS),
    "terminated_failure_info": SpecIn(TerminatedFailure, TerminatedFailureInfo, {}),
    "server_failure_info": SpecIn(ServerFailure, ServerFailureInfo, {}),
    "reset_workflow_failure_info": SpecIn(ResetFailure, ResetWorkflowFailureInfo, _HEARTBEAT),
    "activity_failure_info": SpecIn(
        ActivityFailure, ActivityFailureInfo, {"activity_type": "activity_type.name"}
    ),
    "child_workflow_execution_failure_info": SpecIn(
        ChildWorkflowFailure,
        ChildWorkflowExecutionFailureInfo,
        {
            "workflow_id": "workflow_execution.workflow_id",
            "run_id": "workflow_execution.run_id",
            "workflow_type": "workflow_type.name",
        },
    ),
}
"""The places of each kind of failure, by the name of its field in Temporal's message."""

_NAMES = {info.spec: name for name, info in _INFOS.items()}


def failure_from(message: Any) -> Failure:
    """Decode a failure, with its causes."""
    kind = message.WhichOneof("failure_info")
    info = _INFOS.get(kind)
    return Failure(
        message=message.message,
        info=None if info is None else info.get(getattr(message, kind)),
        cause=failure_from(message.cause) if message.HasField("cause") else None,
        stack_trace=message.stack_trace,
        source=message.source,
        encoded_attributes=(
            payload_from(message.encoded_attributes) if message.HasField("encoded_attributes") else None
        ),
    )


def put_failure(message: Any, failure: Failure) -> None:
    """Write a failure, with its causes, into an empty message."""
    message.SetInParent()
    message.message = failure.message
    message.stack_trace = failure.stack_trace
    message.source = failure.source
    if failure.encoded_attributes is not None:
        put_payload(message.encoded_attributes, failure.encoded_attributes)
    if failure.info is not None:
        name = _NAMES[type(failure.info)]
        info = getattr(message, name)
        info.SetInParent()
        _INFOS[name].put(info, failure.info)
    if failure.cause is not None:
        put_failure(message.cause, failure.cause)
