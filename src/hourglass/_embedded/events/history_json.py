"""A history in Temporal's JSON form: the one that `temporal workflow show`, its web UI and every SDK's
replayer read.

Must not know: runs, engines. Protobuf's JSON rules hold: names in camelCase, 64-bit integers as strings,
bytes in base64, durations as "1.5s", times as RFC 3339, enums by name, defaults left out. `PATCH_MARKER` and
the flags in `sdkMetadata` are what Core itself writes, so that Core replays what we wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from hourglass._embedded.events import history as h
from hourglass._embedded.events import history_local as local
from hourglass._embedded.events import history_others as o
from hourglass._embedded.events.failure_json import failure_json, payload_json, payloads_json
from hourglass._embedded.events.history_local_json import LOCAL_WRITERS
from hourglass._embedded.events.history_others_json import OTHER_WRITERS, execution_json
from hourglass._embedded.events.history_updates_json import UPDATE_WRITERS
from hourglass._embedded.events.history_versions_json import (
    continuing_json,
    declined_json,
    override_json,
    version_json,
    worker_version_json,
)
from hourglass._embedded.events.json_parts import (
    Json,
    duration_json,
    duration_or_none,
    fields_json,
    nanoseconds_json,
    priority_json,
    queue_json,
    retry_json,
    time_json,
    time_or_none,
    trim,
)
from hourglass.converter import Payload

PATCH_MARKER = "core_patch"
CORE_FLAGS = (1, 2, 3)
"""Core's own flags that fit what we write: ids and types are checked, patches are indexed, terminal commands come last."""

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
    kind = type(event.attributes).__name__
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
        case local.MarkerRecorded(summary=summary):
            details = None
        case h.WorkflowExecutionStarted(static_summary=summary, static_details=details):
            pass
        case o.StartChildWorkflowExecutionInitiated(summary=summary, details=details):
            pass
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
        "taskQueue": queue_json(a.task_queue),
        "input": payloads_json(a.arguments),
        "workflowExecutionTimeout": duration_or_none(a.execution_timeout),
        "workflowRunTimeout": duration_or_none(a.run_timeout),
        "workflowTaskTimeout": duration_json(a.task_timeout),
        "workflowExecutionExpirationTime": time_or_none(a.expiration_ns),
        "continuedExecutionRunId": a.continued_run_id,
        "initiator": f"CONTINUE_AS_NEW_INITIATOR_{a.initiator.name}" if a.initiator else None,
        "continuedFailure": failure_json(a.continued_failure) if a.continued_failure else None,
        "lastCompletionResult": payloads_json(a.last_completion_result),
        "originalExecutionRunId": a.original_run_id,
        "identity": a.identity,
        "firstExecutionRunId": a.first_run_id,
        "retryPolicy": retry_json(a.retry_policy),
        "attempt": a.attempt,
        "cronSchedule": a.cron_schedule,
        "firstWorkflowTaskBackoff": duration_json(a.first_task_backoff),
        "memo": fields_json(a.memo, "fields"),
        "searchAttributes": fields_json(a.search_attributes, "indexedFields"),
        "header": fields_json(a.headers, "fields"),
        "workflowId": a.workflow_id,
        "rootWorkflowExecution": execution_json(a.root_workflow_id, a.root_run_id),
        "priority": priority_json(a.priority_key),
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
        "taskQueue": queue_json(a.task_queue),
        "header": fields_json(a.headers, "fields"),
        "input": payloads_json(a.arguments),
        "scheduleToCloseTimeout": duration_json(a.schedule_to_close_timeout),
        "scheduleToStartTimeout": duration_json(a.schedule_to_start_timeout),
        "startToCloseTimeout": duration_json(a.start_to_close_timeout),
        "heartbeatTimeout": duration_json(a.heartbeat_timeout),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "retryPolicy": retry_json(a.retry_policy),
        "priority": priority_json(a.priority_key),
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
        "taskQueue": queue_json(a.task_queue),
        "input": payloads_json(a.arguments),
        "workflowRunTimeout": duration_json(a.run_timeout),
        "workflowTaskTimeout": duration_json(a.task_timeout),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "header": fields_json(a.headers, "fields"),
        "memo": fields_json(a.memo, "fields"),
        "searchAttributes": fields_json(a.search_attributes, "indexedFields"),
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
