"""The JSON of those events by which a history tells of other runs; part of `history_json`, whose rules hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hourglass._embedded.events import history_others as o
from hourglass._embedded.events.failure_json import failure_json, payloads_json
from hourglass._embedded.events.history_base import Attributes
from hourglass._embedded.events.json_parts import (
    Json,
    duration_json,
    duration_or_none,
    fields_json,
    priority_json,
    queue_json,
    retry_json,
    trim,
)


def execution_json(workflow_id: str, run_id: str) -> Json:
    """A run by its ids; empty for none."""
    return trim({"workflowId": workflow_id, "runId": run_id})


def _initiated(a: o.StartChildWorkflowExecutionInitiated) -> Json:
    return {
        "namespace": a.namespace,
        "workflowId": a.workflow_id,
        "workflowType": {"name": a.workflow_type},
        "taskQueue": queue_json(a.task_queue),
        "input": payloads_json(a.arguments),
        "workflowExecutionTimeout": duration_or_none(a.execution_timeout),
        "workflowRunTimeout": duration_json(a.run_timeout),
        "workflowTaskTimeout": duration_json(a.task_timeout),
        "parentClosePolicy": f"PARENT_CLOSE_POLICY_{a.parent_close_policy.name}",
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "workflowIdReusePolicy": f"WORKFLOW_ID_REUSE_POLICY_{a.id_reuse_policy.name}",
        "retryPolicy": retry_json(a.retry_policy),
        "cronSchedule": a.cron_schedule,
        "header": fields_json(a.headers, "fields"),
        "memo": fields_json(a.memo, "fields"),
        "searchAttributes": fields_json(a.search_attributes, "indexedFields"),
        "inheritBuildId": a.inherit_build_id,
        "priority": priority_json(a.priority_key),
    }


def _start_failed(a: o.StartChildWorkflowExecutionFailed) -> Json:
    return {
        "namespace": a.namespace,
        "workflowId": a.workflow_id,
        "workflowType": {"name": a.workflow_type},
        "cause": f"START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_{a.cause.name}",
        "initiatedEventId": str(a.initiated_event_id),
    }


def _started(a: o.ChildWorkflowExecutionStarted) -> Json:
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


def _completed(a: o.ChildWorkflowExecutionCompleted) -> Json:
    return {"result": None if a.result is None else payloads_json((a.result,)), **_end(a)}


def _failed(a: o.ChildWorkflowExecutionFailed) -> Json:
    return {"failure": failure_json(a.failure), **_end(a), "retryState": f"RETRY_STATE_{a.retry_state.name}"}


def _canceled(a: o.ChildWorkflowExecutionCanceled) -> Json:
    return {"details": payloads_json(a.details), **_end(a)}


def _timed_out(a: o.ChildWorkflowExecutionTimedOut) -> Json:
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
    o.ChildWorkflowExecutionStarted: _started,
    o.ChildWorkflowExecutionCompleted: _completed,
    o.ChildWorkflowExecutionFailed: _failed,
    o.ChildWorkflowExecutionCanceled: _canceled,
    o.ChildWorkflowExecutionTimedOut: _timed_out,
    o.ChildWorkflowExecutionTerminated: _end,
    o.SignalExternalWorkflowExecutionInitiated: _signal,
    o.SignalExternalWorkflowExecutionFailed: _signal_failed,
    o.ExternalWorkflowExecutionSignaled: _outcome,
    o.RequestCancelExternalWorkflowExecutionInitiated: _cancel,
    o.RequestCancelExternalWorkflowExecutionFailed: _cancel_failed,
    o.ExternalWorkflowExecutionCancelRequested: _outcome,
}
