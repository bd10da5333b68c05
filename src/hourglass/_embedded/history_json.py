"""A history in Temporal's JSON form: the one that `temporal workflow show`, its web UI and every SDK's
replayer read.

Must not know: runs, engines. Protobuf's JSON rules hold: names in camelCase, 64-bit integers as strings,
bytes in base64, durations as "1.5s", times as RFC 3339, enums by name, defaults left out. `PATCH_MARKER` and
the flags in `sdkMetadata` are what Core itself writes, so that Core replays what we wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from hourglass._embedded import history as h
from hourglass._embedded.failure_json import failure_json, payload_json, payloads_json
from hourglass._engine.events import RetryRule
from hourglass.converter import Payload

Json: TypeAlias = dict[str, Any]

PATCH_MARKER = "core_patch"
CORE_FLAGS = (1, 2, 3)
"""Core's own flags that fit what we write: ids and types are checked, patches are indexed, terminal commands come last."""

TASK_FAILURE_CAUSES = {
    0: "UNSPECIFIED",
    h.UNHANDLED_COMMAND: "UNHANDLED_COMMAND",
    14: "WORKFLOW_WORKER_UNHANDLED_FAILURE",
    h.FORCE_CLOSE_COMMAND: "FORCE_CLOSE_COMMAND",
    24: "NON_DETERMINISTIC_ERROR",
    h.PENDING_ACTIVITIES_LIMIT_EXCEEDED: "PENDING_ACTIVITIES_LIMIT_EXCEEDED",
    h.FEATURE_DISABLED: "FEATURE_DISABLED",
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
        kind[0].lower() + kind[1:] + "EventAttributes": _trim(
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
        case h.WorkflowExecutionStarted(static_summary=summary, static_details=details):
            pass
        case _:
            return {}
    named = {"summary": summary, "details": details}
    return {key: payload_json(value) for key, value in named.items() if value is not None}


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


def _trim(attributes: Json) -> Json:
    """Without what is unset: protobuf leaves defaults out."""
    return {key: value for key, value in attributes.items() if value not in (None, "", "0", 0, False, {}, [])}


def _fields(fields: Mapping[str, Payload], inner: str) -> Json | None:
    return {inner: {key: payload_json(value) for key, value in fields.items()}} if fields else None


def _queue(name: str) -> Json:
    return {"name": name, "kind": "TASK_QUEUE_KIND_NORMAL"}


def _time_or_none(ns: int) -> str | None:
    return time_json(ns) if ns else None


def _duration_or_none(seconds: float) -> str | None:
    return duration_json(seconds) if seconds else None


def _priority(key: int) -> Json | None:
    return {"priorityKey": key} if key else None


def retry_json(rule: RetryRule | None) -> Json | None:
    """A retry policy as JSON."""
    if rule is None:
        return None
    return _trim(
        {
            "initialInterval": duration_json(rule.initial_interval),
            "backoffCoefficient": rule.backoff_coefficient,
            "maximumInterval": _duration_or_none(rule.maximum_interval),
            "maximumAttempts": rule.maximum_attempts,
            "nonRetryableErrorTypes": list(rule.non_retryable_error_types),
        }
    )


def _started(a: h.WorkflowExecutionStarted) -> Json:
    return {
        "workflowType": {"name": a.workflow_type},
        "taskQueue": _queue(a.task_queue),
        "input": payloads_json(a.arguments),
        "workflowExecutionTimeout": _duration_or_none(a.execution_timeout),
        "workflowRunTimeout": _duration_or_none(a.run_timeout),
        "workflowTaskTimeout": duration_json(a.task_timeout),
        "workflowExecutionExpirationTime": _time_or_none(a.expiration_ns),
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
        "memo": _fields(a.memo, "fields"),
        "searchAttributes": _fields(a.search_attributes, "indexedFields"),
        "header": _fields(a.headers, "fields"),
        "workflowId": a.workflow_id,
        "priority": _priority(a.priority_key),
    }


def _task_scheduled(a: h.WorkflowTaskScheduled) -> Json:
    return {
        "taskQueue": _queue(a.task_queue),
        "startToCloseTimeout": duration_json(a.task_timeout),
        "attempt": a.attempt,
    }


def _task_started(a: h.WorkflowTaskStarted) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "identity": a.identity,
        "historySizeBytes": str(a.history_size),
        "suggestContinueAsNew": a.suggest_continue_as_new,
    }


def _task_completed(a: h.WorkflowTaskCompleted) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "identity": a.identity,
        "sdkMetadata": _trim({"coreUsedFlags": list(CORE_FLAGS), "langUsedFlags": list(a.flags)}),
    }


def _task_failed(a: h.WorkflowTaskFailed) -> Json:
    return {
        "scheduledEventId": str(a.scheduled_event_id),
        "startedEventId": str(a.started_event_id),
        "cause": f"WORKFLOW_TASK_FAILED_CAUSE_{TASK_FAILURE_CAUSES[a.cause]}",
        "failure": failure_json(a.failure) if a.failure else None,
        "identity": a.identity,
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
        "taskQueue": _queue(a.task_queue),
        "header": _fields(a.headers, "fields"),
        "input": payloads_json(a.arguments),
        "scheduleToCloseTimeout": duration_json(a.schedule_to_close_timeout),
        "scheduleToStartTimeout": duration_json(a.schedule_to_start_timeout),
        "startToCloseTimeout": duration_json(a.start_to_close_timeout),
        "heartbeatTimeout": duration_json(a.heartbeat_timeout),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "retryPolicy": retry_json(a.retry_policy),
        "priority": _priority(a.priority_key),
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
        "searchAttributes": _fields(a.search_attributes, "indexedFields"),
    }


def _modified(a: h.WorkflowPropertiesModified) -> Json:
    return {
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "upsertedMemo": _fields(a.memo, "fields"),
    }


def _signaled(a: h.WorkflowExecutionSignaled) -> Json:
    return {
        "signalName": a.signal_name,
        "input": payloads_json(a.arguments),
        "identity": a.identity,
        "header": _fields(a.headers, "fields"),
        "requestId": a.request_id,
    }


def _cancel_requested(a: h.WorkflowExecutionCancelRequested) -> Json:
    return {"cause": a.reason, "identity": a.identity}


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
        "taskQueue": _queue(a.task_queue),
        "input": payloads_json(a.arguments),
        "workflowRunTimeout": duration_json(a.run_timeout),
        "workflowTaskTimeout": duration_json(a.task_timeout),
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "initiator": "CONTINUE_AS_NEW_INITIATOR_WORKFLOW",
        "header": _fields(a.headers, "fields"),
        "memo": _fields(a.memo, "fields"),
        "searchAttributes": _fields(a.search_attributes, "indexedFields"),
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
}
