"""A history in Temporal's JSON form: the one that `temporal workflow show`, its web UI and every SDK's replayer read.

Must not know: runs, engines, decisions. Protobuf's JSON rules hold: names in camelCase, 64-bit integers as strings,
bytes in base64, durations as "1.5s", times as RFC 3339, enums by name, defaults left out. One small writer per kind
of event, and a table of them. `PATCH_MARKER`, `LOCAL_MARKER` and the flags in `sdkMetadata` are what Core itself
writes, so that Core replays what we wrote.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from hourglass._engine.specs import RetryRule
from hourglass._engine.versions import (
    ContinueAsNewVersioningBehavior,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._history import events as h
from hourglass._history import events as local
from hourglass._history import events as o
from hourglass._history import events as u
from hourglass._history.events import Attributes
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

# --- payloads and failures ----------------------------------------------------------------------------------

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


# --- times, durations, queues, policies ---------------------------------------------------------------------


def time_json(ns: int) -> str:
    """Nanoseconds since the epoch as RFC 3339."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z"


def duration_json(seconds: float) -> str:
    """Seconds as protobuf writes a duration."""
    return nanoseconds_json(round(seconds * 1_000_000_000))


def nanoseconds_json(ns: int) -> str:
    """Nanoseconds as protobuf writes a duration."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    return f"{seconds}.{fraction:09d}".rstrip("0").rstrip(".") + "s"


def trim(attributes: Json) -> Json:
    """Without what is unset: protobuf leaves defaults out."""
    return {key: value for key, value in attributes.items() if value not in (None, "", "0", 0, False, {}, [])}


def fields_json(fields: Mapping[str, Payload], inner: str) -> Json | None:
    """Named payloads."""
    return {inner: {key: payload_json(value) for key, value in fields.items()}} if fields else None


def queue_json(name: str) -> Json:
    """A task queue."""
    return {"name": name, "kind": "TASK_QUEUE_KIND_NORMAL"}


def time_or_none(ns: int) -> str | None:
    """A time, unless it is unset."""
    return time_json(ns) if ns else None


def duration_or_none(seconds: float) -> str | None:
    """A duration, unless it is unset."""
    return duration_json(seconds) if seconds else None


def priority_json(key: int) -> Json | None:
    """A priority, unless it is unset."""
    return {"priorityKey": key} if key else None


def retry_json(rule: RetryRule | None) -> Json | None:
    """A retry policy as JSON."""
    if rule is None:
        return None
    return trim(
        {
            "initialInterval": duration_json(rule.initial_interval),
            "backoffCoefficient": rule.backoff_coefficient,
            "maximumInterval": duration_or_none(rule.maximum_interval),
            "maximumAttempts": rule.maximum_attempts,
            "nonRetryableErrorTypes": list(rule.non_retryable_error_types),
        }
    )


# --- versions of workers ------------------------------------------------------------------------------------


def version_json(version: WorkerDeploymentVersion | None) -> Json | None:
    """A version."""
    if version is None:
        return None
    return {"deploymentName": version.deployment_name, "buildId": version.build_id}


def override_json(override: VersioningOverride | None) -> Json | None:
    """The versioning override that a client gave a run."""
    if override is None:
        return None
    if isinstance(override, PinnedVersioningOverride):
        pinned = {"behavior": "PINNED_OVERRIDE_BEHAVIOR_PINNED", "version": version_json(override.version)}
        return {"pinned": pinned}
    return {"autoUpgrade": True}


def declined_json(version: WorkerDeploymentVersion | None) -> Json | None:
    """The version that a run could have moved to when it was begun, and did not."""
    return None if version is None else {"deploymentVersion": version_json(version)}


def continuing_json(behavior: ContinueAsNewVersioningBehavior) -> str | None:
    """Which version a run begins on that another continues as, where that was said."""
    return f"CONTINUE_AS_NEW_VERSIONING_BEHAVIOR_{behavior.name}" if behavior else None


def worker_version_json(version: WorkerDeploymentVersion | None, behavior: VersioningBehavior) -> Json:
    """The version of the worker that answered a task, and whether the run is pinned to it."""
    if version is None:
        return {}
    return {
        "workerVersion": {"buildId": version.build_id},
        "versioningBehavior": f"VERSIONING_BEHAVIOR_{behavior.name}" if behavior else None,
        "workerDeploymentName": version.deployment_name,
        "deploymentVersion": version_json(version),
    }


# --- local activities ---------------------------------------------------------------------------------------

LOCAL_MARKER = "core_local_activity"
"""The name of Core's marker. What Core needs of it is JSON in a payload of its own, with times and durations in
seconds and nanoseconds.
"""


def _local_marker(a: local.LocalActivityMarkerRecorded) -> Json:
    details = {"data": payloads_json((Payload(msgspec.json.encode(_data(a)), "json/plain"),))}
    if a.result is not None:
        details["result"] = payloads_json((a.result,))
    return {
        "markerName": LOCAL_MARKER,
        "details": details,
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "failure": None if a.failure is None else failure_json(a.failure),
    }


def _data(a: local.LocalActivityMarkerRecorded) -> Json:
    data: Json = {
        "seq": a.seq,
        "attempt": a.attempt,
        "activity_id": a.activity_id,
        "activity_type": a.activity_type,
        "complete_time": _parts(a.complete_ns),
        "backoff": _parts(a.backoff_ns),
        "original_schedule_time": _parts(a.original_schedule_ns),
        "activation_index": None if a.activation_index == local.NO_INDEX else a.activation_index,
    }
    return data


def _parts(ns: int) -> Json | None:
    if not ns:
        return None
    seconds, nanos = divmod(ns, 1_000_000_000)
    return {"seconds": seconds, "nanos": nanos}


LOCAL_WRITERS: dict[type[Attributes], Callable[[Any], Json]] = {
    local.LocalActivityMarkerRecorded: _local_marker
}


# --- updates ------------------------------------------------------------------------------------------------


def _request(request: u.UpdateRequest) -> Json:
    return {
        "meta": _meta(request.update_id, request.identity),
        "input": trim(
            {
                "header": fields_json(request.headers, "fields"),
                "name": request.name,
                "args": payloads_json(request.arguments),
            }
        ),
    }


def _meta(update_id: str, identity: str) -> Json:
    return trim({"updateId": update_id, "identity": identity})


def _admitted(a: u.WorkflowExecutionUpdateAdmitted) -> Json:
    return {"request": _request(a.request), "origin": "UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY"}


def _accepted(a: u.WorkflowExecutionUpdateAccepted) -> Json:
    return {
        "protocolInstanceId": a.update_id,
        "acceptedRequestMessageId": f"{a.update_id}/request",
        "acceptedRequestSequencingEventId": str(a.sequencing_event_id),
        "acceptedRequest": None if a.request is None else _request(a.request),
    }


def _update_completed(a: u.WorkflowExecutionUpdateCompleted) -> Json:
    if a.failure is not None:
        outcome = {"failure": failure_json(a.failure)}
    else:
        outcome = {"success": payloads_json(() if a.result is None else (a.result,)) or {}}
    return {
        "meta": _meta(a.update_id, a.identity),
        "acceptedEventId": str(a.accepted_event_id),
        "outcome": outcome,
    }


UPDATE_WRITERS: dict[type[Attributes], Callable[[Any], Json]] = {
    u.WorkflowExecutionUpdateAdmitted: _admitted,
    u.WorkflowExecutionUpdateAccepted: _accepted,
    u.WorkflowExecutionUpdateCompleted: _update_completed,
}


# --- other runs ---------------------------------------------------------------------------------------------


def execution_json(workflow_id: str, run_id: str) -> Json:
    """A run by its ids; empty for none."""
    return trim({"workflowId": workflow_id, "runId": run_id})


def _initiated(a: o.StartChildWorkflowExecutionInitiated) -> Json:
    return {
        "namespace": a.namespace,
        "workflowId": a.workflow_id,
        "workflowType": {"name": a.workflow_type},
        "taskQueue": queue_json(a.spec.task_queue),
        "input": payloads_json(a.arguments),
        "workflowExecutionTimeout": duration_or_none(a.spec.execution_timeout),
        "workflowRunTimeout": duration_json(a.spec.run_timeout),
        "workflowTaskTimeout": duration_json(a.spec.task_timeout),
        "parentClosePolicy": f"PARENT_CLOSE_POLICY_{a.child.parent_close_policy.name}",
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "workflowIdReusePolicy": f"WORKFLOW_ID_REUSE_POLICY_{a.child.id_reuse_policy.name}",
        "retryPolicy": retry_json(a.spec.retry_policy),
        "cronSchedule": a.spec.cron_schedule,
        "header": fields_json(a.headers, "fields"),
        "memo": fields_json(a.spec.memo, "fields"),
        "searchAttributes": fields_json(a.spec.search_attributes, "indexedFields"),
        "inheritBuildId": a.inherit_build_id,
        "priority": priority_json(a.spec.priority_key),
    }


def _start_failed(a: o.StartChildWorkflowExecutionFailed) -> Json:
    return {
        "namespace": a.namespace,
        "workflowId": a.workflow_id,
        "workflowType": {"name": a.workflow_type},
        "cause": f"START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_{a.cause.name}",
        "initiatedEventId": str(a.initiated_event_id),
    }


def _child_started(a: o.ChildWorkflowExecutionStarted) -> Json:
    return {
        "namespace": a.namespace,
        "initiatedEventId": str(a.initiated_event_id),
        "workflowExecution": execution_json(a.workflow_id, a.run_id),
        "workflowType": {"name": a.workflow_type},
        "header": fields_json(a.headers, "fields"),
    }


def _end(a: o.ChildEnd) -> Json:
    return {
        "namespace": a.namespace,
        "workflowExecution": execution_json(a.workflow_id, a.run_id),
        "workflowType": {"name": a.workflow_type},
        "initiatedEventId": str(a.initiated_event_id),
        "startedEventId": str(a.started_event_id),
    }


def _child_completed(a: o.ChildWorkflowExecutionCompleted) -> Json:
    return {"result": None if a.result is None else payloads_json((a.result,)), **_end(a)}


def _child_failed(a: o.ChildWorkflowExecutionFailed) -> Json:
    return {"failure": failure_json(a.failure), **_end(a), "retryState": f"RETRY_STATE_{a.retry_state.name}"}


def _child_canceled(a: o.ChildWorkflowExecutionCanceled) -> Json:
    return {"details": payloads_json(a.details), **_end(a)}


def _child_timed_out(a: o.ChildWorkflowExecutionTimedOut) -> Json:
    return {**_end(a), "retryState": f"RETRY_STATE_{a.retry_state.name}"}


def _signal(a: o.SignalExternalWorkflowExecutionInitiated) -> Json:
    return {
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "namespace": a.namespace,
        "workflowExecution": execution_json(a.workflow_id, a.run_id),
        "signalName": a.signal_name,
        "input": payloads_json(a.arguments),
        "childWorkflowOnly": a.child_only,
        "header": fields_json(a.headers, "fields"),
    }


def _signal_failed(a: o.SignalExternalWorkflowExecutionFailed) -> Json:
    return {"cause": f"SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_{a.cause.name}", **_outcome(a)}


def _cancel(a: o.RequestCancelExternalWorkflowExecutionInitiated) -> Json:
    return {
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "namespace": a.namespace,
        "workflowExecution": execution_json(a.workflow_id, a.run_id),
        "childWorkflowOnly": a.child_only,
        "reason": a.reason,
    }


def _cancel_failed(a: o.RequestCancelExternalWorkflowExecutionFailed) -> Json:
    return {"cause": f"CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_{a.cause.name}", **_outcome(a)}


def _outcome(
    a: o.SignalExternalWorkflowExecutionFailed
    | o.RequestCancelExternalWorkflowExecutionFailed
    | o.ExternalWorkflowExecutionSignaled
    | o.ExternalWorkflowExecutionCancelRequested,
) -> Json:
    return {
        "namespace": a.namespace,
        "workflowExecution": execution_json(a.workflow_id, a.run_id),
        "initiatedEventId": str(a.initiated_event_id),
    }


OTHER_WRITERS: dict[type[Attributes], Callable[[Any], Json]] = {
    o.StartChildWorkflowExecutionInitiated: _initiated,
    o.StartChildWorkflowExecutionFailed: _start_failed,
    o.ChildWorkflowExecutionStarted: _child_started,
    o.ChildWorkflowExecutionCompleted: _child_completed,
    o.ChildWorkflowExecutionFailed: _child_failed,
    o.ChildWorkflowExecutionCanceled: _child_canceled,
    o.ChildWorkflowExecutionTimedOut: _child_timed_out,
    o.ChildWorkflowExecutionTerminated: _end,
    o.SignalExternalWorkflowExecutionInitiated: _signal,
    o.SignalExternalWorkflowExecutionFailed: _signal_failed,
    o.ExternalWorkflowExecutionSignaled: _outcome,
    o.RequestCancelExternalWorkflowExecutionInitiated: _cancel,
    o.RequestCancelExternalWorkflowExecutionFailed: _cancel_failed,
    o.ExternalWorkflowExecutionCancelRequested: _outcome,
}


# --- the run itself, its tasks, activities and timers -------------------------------------------------------

PATCH_MARKER = "core_patch"
CORE_FLAGS = (1, 2, 3)
"""Core's own flags that fit what we write: ids and types are checked, patches are indexed, terminal commands come
last.
"""

TASK_FAILURE_CAUSES = {
    0: "UNSPECIFIED",
    h.UNHANDLED_COMMAND: "UNHANDLED_COMMAND",
    h.BAD_SCHEDULE_ACTIVITY: "BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
    h.BAD_REQUEST_CANCEL_EXTERNAL: "BAD_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_ATTRIBUTES",
    h.BAD_CONTINUE_AS_NEW: "BAD_CONTINUE_AS_NEW_ATTRIBUTES",
    h.BAD_SIGNAL: "BAD_SIGNAL_WORKFLOW_EXECUTION_ATTRIBUTES",
    h.BAD_START_CHILD: "BAD_START_CHILD_EXECUTION_ATTRIBUTES",
    h.BAD_SEARCH_ATTRIBUTES: "BAD_SEARCH_ATTRIBUTES",
    14: "WORKFLOW_WORKER_UNHANDLED_FAILURE",
    h.FORCE_CLOSE_COMMAND: "FORCE_CLOSE_COMMAND",
    h.RESET_WORKFLOW: "RESET_WORKFLOW",
    h.SCHEDULE_ACTIVITY_DUPLICATE_ID: "SCHEDULE_ACTIVITY_DUPLICATE_ID",
    24: "NON_DETERMINISTIC_ERROR",
    h.PENDING_CHILDREN_LIMIT_EXCEEDED: "PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED",
    h.PENDING_ACTIVITIES_LIMIT_EXCEEDED: "PENDING_ACTIVITIES_LIMIT_EXCEEDED",
    h.PENDING_SIGNALS_LIMIT_EXCEEDED: "PENDING_SIGNALS_LIMIT_EXCEEDED",
    h.PENDING_CANCELS_LIMIT_EXCEEDED: "PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED",
    h.FEATURE_DISABLED: "FEATURE_DISABLED",
    h.PAYLOADS_TOO_LARGE: "PAYLOADS_TOO_LARGE",
}

_WORD = re.compile(r"(?<!^)(?=[A-Z])")


def event_json(event: h.HistoryEvent) -> bytes:
    """One event as JSON."""
    kind = h.kind_of(event.attributes)
    name = _WORD.sub("_", kind).upper()
    document = {
        "eventId": str(event.id),
        "eventTime": time_json(event.time_ns),
        "eventType": f"EVENT_TYPE_{name}",
        kind[0].lower() + kind[1:] + "EventAttributes": trim(
            _WRITERS[type(event.attributes)](event.attributes)
        ),
    }
    metadata = _metadata(event.attributes)
    if metadata:
        document["userMetadata"] = metadata
    return msgspec.json.encode(document)


def _metadata(attributes: h.Attributes) -> Json:
    match attributes:
        case h.ActivityTaskScheduled(summary=summary) | h.TimerStarted(summary=summary):
            details = None
        case local.LocalActivityMarkerRecorded(summary=summary):
            details = None
        case h.WorkflowExecutionStarted(spec=spec) | o.StartChildWorkflowExecutionInitiated(spec=spec):
            summary, details = spec.static_summary, spec.static_details
        case _:
            return {}
    named = {"summary": summary, "details": details}
    return {key: payload_json(value) for key, value in named.items() if value is not None}


def _started(a: h.WorkflowExecutionStarted) -> Json:
    return {
        "workflowType": {"name": a.workflow_type},
        "parentWorkflowNamespace": a.parent_namespace,
        "parentWorkflowExecution": execution_json(a.parent_workflow_id, a.parent_run_id),
        "parentInitiatedEventId": str(a.parent_initiated_event_id),
        "taskQueue": queue_json(a.spec.task_queue),
        "input": payloads_json(a.arguments),
        "workflowExecutionTimeout": duration_or_none(a.spec.execution_timeout),
        "workflowRunTimeout": duration_or_none(a.spec.run_timeout),
        "workflowTaskTimeout": duration_json(a.spec.task_timeout),
        "workflowExecutionExpirationTime": time_or_none(a.expiration_ns),
        "continuedExecutionRunId": a.continued_run_id,
        "initiator": f"CONTINUE_AS_NEW_INITIATOR_{a.initiator.name}" if a.initiator else None,
        "continuedFailure": failure_json(a.continued_failure) if a.continued_failure else None,
        "lastCompletionResult": payloads_json(a.last_completion_result),
        "originalExecutionRunId": a.original_run_id,
        "identity": a.identity,
        "firstExecutionRunId": a.first_run_id,
        "retryPolicy": retry_json(a.spec.retry_policy),
        "attempt": a.attempt,
        "cronSchedule": a.spec.cron_schedule,
        "firstWorkflowTaskBackoff": duration_json(a.first_task_backoff),
        "memo": fields_json(a.spec.memo, "fields"),
        "searchAttributes": fields_json(a.spec.search_attributes, "indexedFields"),
        "header": fields_json(a.headers, "fields"),
        "workflowId": a.workflow_id,
        "rootWorkflowExecution": execution_json(a.root_workflow_id, a.root_run_id),
        "priority": priority_json(a.spec.priority_key),
        "versioningOverride": override_json(a.versioning_override),
        "inheritedPinnedVersion": version_json(a.inherited_pinned_version),
        "declinedTargetVersionUpgrade": declined_json(a.declined_version),
    }


def _task_scheduled(a: h.WorkflowTaskScheduled) -> Json:
    return {
        "taskQueue": queue_json(a.task_queue),
        "startToCloseTimeout": duration_json(a.task_timeout),
        "attempt": a.attempt,
    }


def _task_started(a: h.WorkflowTaskStarted) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "identity": a.identity,
        "historySizeBytes": str(a.history_size),
        "suggestContinueAsNew": a.suggest_continue_as_new,
        "targetWorkerDeploymentVersionChanged": a.target_version_changed,
    }


def _task_completed(a: h.WorkflowTaskCompleted) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "identity": a.identity,
        "sdkMetadata": trim({"coreUsedFlags": list(CORE_FLAGS), "langUsedFlags": list(a.flags)}),
        **worker_version_json(a.version, a.behavior),
    }


def _task_failed(a: h.WorkflowTaskFailed) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "cause": f"WORKFLOW_TASK_FAILED_CAUSE_{TASK_FAILURE_CAUSES[a.cause]}",
        "failure": failure_json(a.failure) if a.failure else None,
        "identity": a.identity,
        "baseRunId": a.base_run_id,
        "newRunId": a.new_run_id,
    }


def _task_timed_out(a: h.WorkflowTaskTimedOut) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "timeoutType": "TIMEOUT_TYPE_START_TO_CLOSE",
    }


def _activity_scheduled(a: h.ActivityTaskScheduled) -> Json:
    return {
        "activityId": a.activity_id,
        "activityType": {"name": a.activity_type},
        "taskQueue": queue_json(a.spec.task_queue),
        "header": fields_json(a.headers, "fields"),
        "input": payloads_json(a.arguments),
        "scheduleToCloseTimeout": duration_json(a.spec.schedule_to_close_timeout),
        "scheduleToStartTimeout": duration_json(a.spec.schedule_to_start_timeout),
        "startToCloseTimeout": duration_json(a.spec.start_to_close_timeout),
        "heartbeatTimeout": duration_json(a.spec.heartbeat_timeout),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "retryPolicy": retry_json(a.spec.retry_policy),
        "priority": priority_json(a.spec.priority_key),
    }


def _activity_started(a: h.ActivityTaskStarted) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "identity": a.identity,
        "attempt": a.attempt,
        "lastFailure": failure_json(a.last_failure) if a.last_failure else None,
    }


def _activity_completed(a: h.ActivityTaskCompleted) -> Json:
    return {
        "result": None if a.result is None else payloads_json((a.result,)),
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "identity": a.identity,
    }


def _activity_failed(a: h.ActivityTaskFailed) -> Json:
    return {
        "failure": failure_json(a.failure),
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "identity": a.identity,
        "retryState": f"RETRY_STATE_{a.retry_state.name}",
    }


def _activity_timed_out(a: h.ActivityTaskTimedOut) -> Json:
    return {
        "failure": failure_json(a.failure),
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "retryState": f"RETRY_STATE_{a.retry_state.name}",
    }


def _activity_cancel_requested(a: h.ActivityTaskCancelRequested) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
    }


def _activity_canceled(a: h.ActivityTaskCanceled) -> Json:
    return {
        "details": payloads_json(a.details),
        "latestCancelRequestedEventId": str(a.cancel_requested_event_id),
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "identity": a.identity,
    }


def _timer_started(a: h.TimerStarted) -> Json:
    return {
        "timerId": a.timer_id,
        "startToFireTimeout": nanoseconds_json(a.duration_ns),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
    }


def _timer_fired(a: h.TimerFired) -> Json:
    return {"timerId": a.timer_id, "startedEventId": str(a.started_event_id)}


def _timer_canceled(a: h.TimerCanceled) -> Json:
    return {
        "timerId": a.timer_id,
        "startedEventId": str(a.started_event_id),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "identity": a.identity,
    }


def _marker(a: h.MarkerRecorded) -> Json:
    data = msgspec.json.encode({"id": a.patch_id, "deprecated": a.deprecated})
    return {
        "markerName": PATCH_MARKER,
        "details": {"patch-data": payloads_json((Payload(data, "json/plain"),))},
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
    }


def _upserted(a: h.UpsertWorkflowSearchAttributes) -> Json:
    return {
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "searchAttributes": fields_json(a.search_attributes, "indexedFields"),
    }


def _modified(a: h.WorkflowPropertiesModified) -> Json:
    return {
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "upsertedMemo": fields_json(a.memo, "fields"),
    }


def _signaled(a: h.WorkflowExecutionSignaled) -> Json:
    return {
        "signalName": a.signal_name,
        "input": payloads_json(a.arguments),
        "identity": a.identity,
        "header": fields_json(a.headers, "fields"),
        "externalWorkflowExecution": execution_json(a.external_workflow_id, a.external_run_id),
        "requestId": a.request_id,
    }


def _cancel_requested(a: h.WorkflowExecutionCancelRequested) -> Json:
    return {
        "cause": a.reason,
        "externalInitiatedEventId": str(a.external_initiated_event_id),
        "externalWorkflowExecution": execution_json(a.external_workflow_id, a.external_run_id),
        "identity": a.identity,
    }


def _completed(a: h.WorkflowExecutionCompleted) -> Json:
    return {
        "result": payloads_json((a.result,)),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "newExecutionRunId": a.new_run_id,
    }


def _failed(a: h.WorkflowExecutionFailed) -> Json:
    return {
        "failure": failure_json(a.failure),
        "retryState": f"RETRY_STATE_{a.retry_state.name}",
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "newExecutionRunId": a.new_run_id,
    }


def _canceled(a: h.WorkflowExecutionCanceled) -> Json:
    return {
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "details": payloads_json(a.details),
    }


def _terminated(a: h.WorkflowExecutionTerminated) -> Json:
    return {"reason": a.reason, "details": payloads_json(a.details), "identity": a.identity}


def _timed_out(a: h.WorkflowExecutionTimedOut) -> Json:
    return {"retryState": f"RETRY_STATE_{a.retry_state.name}", "newExecutionRunId": a.new_run_id}


def _continued(a: h.WorkflowExecutionContinuedAsNew) -> Json:
    return {
        "newExecutionRunId": a.new_run_id,
        "workflowType": {"name": a.workflow_type},
        "taskQueue": queue_json(a.spec.task_queue),
        "input": payloads_json(a.arguments),
        "workflowRunTimeout": duration_json(a.spec.run_timeout),
        "workflowTaskTimeout": duration_json(a.spec.task_timeout),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "header": fields_json(a.headers, "fields"),
        "memo": fields_json(a.spec.memo, "fields"),
        "searchAttributes": fields_json(a.spec.search_attributes, "indexedFields"),
        "initialVersioningBehavior": continuing_json(a.versioning),
    }


_WRITERS: dict[type[h.Attributes], Callable[[Any], Json]] = {
    h.WorkflowExecutionStarted: _started,
    h.WorkflowTaskScheduled: _task_scheduled,
    h.WorkflowTaskStarted: _task_started,
    h.WorkflowTaskCompleted: _task_completed,
    h.WorkflowTaskFailed: _task_failed,
    h.WorkflowTaskTimedOut: _task_timed_out,
    h.ActivityTaskScheduled: _activity_scheduled,
    h.ActivityTaskStarted: _activity_started,
    h.ActivityTaskCompleted: _activity_completed,
    h.ActivityTaskFailed: _activity_failed,
    h.ActivityTaskTimedOut: _activity_timed_out,
    h.ActivityTaskCancelRequested: _activity_cancel_requested,
    h.ActivityTaskCanceled: _activity_canceled,
    h.TimerStarted: _timer_started,
    h.TimerFired: _timer_fired,
    h.TimerCanceled: _timer_canceled,
    h.MarkerRecorded: _marker,
    h.UpsertWorkflowSearchAttributes: _upserted,
    h.WorkflowPropertiesModified: _modified,
    h.WorkflowExecutionSignaled: _signaled,
    h.WorkflowExecutionCancelRequested: _cancel_requested,
    h.WorkflowExecutionCompleted: _completed,
    h.WorkflowExecutionFailed: _failed,
    h.WorkflowExecutionCanceled: _canceled,
    h.WorkflowExecutionTerminated: _terminated,
    h.WorkflowExecutionTimedOut: _timed_out,
    h.WorkflowExecutionContinuedAsNew: _continued,
    **LOCAL_WRITERS,
    **OTHER_WRITERS,
    **UPDATE_WRITERS,
}
