"""Events of a history, as Temporal's messages, as the data that the embedded engine's rules work on. Pure.

Must not know: tasks, commands, markers (see `_foreign_markers`). Only what a run is told of, or asked for, is read; all else
is None. A kind that a plain function cannot have led to (Nexus) is a `HistoryError` that names the event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hourglass._engine.specs import ActivitySpec, Payloads, StartSpec
from hourglass._history import events as h
from hourglass._history import events as o
from hourglass._history import events as u
from hourglass._temporal.payloads import (
    failure_from,
    nanos_from,
    payload_map_from,
    payloads_from,
    retry_rule_from,
    seconds_from,
)
from hourglass.converter import Failure, Payload
from hourglass.errors import HistoryError, RetryState

ASKED: tuple[type[h.Attributes], ...] = (
    h.ActivityTaskScheduled,
    h.ActivityTaskCancelRequested,
    h.TimerStarted,
    h.TimerCanceled,
    o.StartChildWorkflowExecutionInitiated,
    o.SignalExternalWorkflowExecutionInitiated,
    o.RequestCancelExternalWorkflowExecutionInitiated,
    u.WorkflowExecutionUpdateAccepted,
    u.WorkflowExecutionUpdateCompleted,
    h.UpsertWorkflowSearchAttributes,
    h.WorkflowPropertiesModified,
    h.WorkflowExecutionCompleted,
    h.WorkflowExecutionFailed,
    h.WorkflowExecutionCanceled,
    h.WorkflowExecutionContinuedAsNew,
)
"""The kinds of events that a workflow's own commands lead to."""

_RETRY, _CRON = 2, 3


def read_event(event: Any) -> h.Attributes | None:
    """What an event says; None where that is nothing to a workflow. Raises `HistoryError`."""
    kind = event.WhichOneof("attributes") or ""
    if kind.startswith("nexus_"):
        name = kind.removesuffix("_event_attributes")
        raise HistoryError(
            f"event {event.event_id} ({name}) tells of a Nexus operation, which Hourglass cannot replay"
        )
    read = _READ.get(kind.removesuffix("_event_attributes"))
    return None if read is None else read(getattr(event, kind))


def _one(payloads: Any) -> Payload | None:
    found = payloads_from(payloads.payloads)
    return found[0] if found else None


def _failure(message: Any) -> Failure:
    return failure_from(message.failure) if message.HasField("failure") else Failure("")


def _retry_state(message: Any) -> RetryState:
    try:
        return RetryState(message.retry_state)
    except ValueError:
        return RetryState.UNSPECIFIED


# --- the run --------------------------------------------------------------------------------------------------------


def _started(a: Any) -> h.Attributes:
    return h.WorkflowExecutionStarted(
        workflow_id=a.workflow_id,
        workflow_type=a.workflow_type.name,
        original_run_id=a.original_execution_run_id,
        first_run_id=a.first_execution_run_id,
        arguments=payloads_from(a.input.payloads),
        spec=StartSpec(
            task_queue=a.task_queue.name,
            execution_timeout=seconds_from(a.workflow_execution_timeout),
            run_timeout=seconds_from(a.workflow_run_timeout),
            task_timeout=seconds_from(a.workflow_task_timeout),
            retry_policy=retry_rule_from(a.retry_policy) if a.HasField("retry_policy") else None,
            cron_schedule=a.cron_schedule,
            memo=payload_map_from(a.memo.fields),
            search_attributes=payload_map_from(a.search_attributes.indexed_fields),
            priority_key=a.priority.priority_key,
        ),
        identity=a.identity,
        attempt=a.attempt or 1,
        headers=payload_map_from(a.header.fields),
        continued_run_id=a.continued_execution_run_id,
        continued_failure=failure_from(a.continued_failure) if a.HasField("continued_failure") else None,
        last_completion_result=payloads_from(a.last_completion_result.payloads),
        parent_namespace=a.parent_workflow_namespace,
        parent_workflow_id=a.parent_workflow_execution.workflow_id,
        parent_run_id=a.parent_workflow_execution.run_id,
        root_workflow_id=a.root_workflow_execution.workflow_id,
        root_run_id=a.root_workflow_execution.run_id,
    )


def _task_failed(a: Any) -> h.Attributes:
    return h.WorkflowTaskFailed(
        scheduled_event_id=a.scheduled_event_id,
        started_event_id=a.started_event_id,
        cause=a.cause,
        new_run_id=a.new_run_id,
    )


def _signaled(a: Any) -> h.Attributes:
    return h.WorkflowExecutionSignaled(
        signal_name=a.signal_name,
        arguments=payloads_from(a.input.payloads),
        identity=a.identity,
        headers=payload_map_from(a.header.fields),
    )


def _cancel_requested(a: Any) -> h.Attributes:
    return h.WorkflowExecutionCancelRequested(reason=a.cause, identity=a.identity)


def _completed(a: Any) -> h.Attributes:
    return h.WorkflowExecutionCompleted(
        result=_one(a.result) or Payload(b"", "binary/null"), task_completed_event_id=0
    )


def _failed(a: Any) -> h.Attributes:
    return h.WorkflowExecutionFailed(
        failure=_failure(a), retry_state=_retry_state(a), task_completed_event_id=0
    )


def _canceled(a: Any) -> h.Attributes:
    return h.WorkflowExecutionCanceled(task_completed_event_id=0)


def _continued(a: Any) -> h.Attributes:
    # Servers of the first years ended a run so that was to be tried again, or came round by its cron schedule.
    if a.initiator == _RETRY or (a.initiator == _CRON and a.HasField("failure")):
        return _failed_of(_failure(a))
    if a.initiator == _CRON:
        return h.WorkflowExecutionCompleted(
            result=_one(a.last_completion_result) or Payload(b"", "binary/null"), task_completed_event_id=0
        )
    return h.WorkflowExecutionContinuedAsNew(
        new_run_id=a.new_execution_run_id,
        workflow_type=a.workflow_type.name,
        spec=StartSpec(task_queue=a.task_queue.name),
        task_completed_event_id=0,
        arguments=payloads_from(a.input.payloads),
    )


def _failed_of(failure: Failure) -> h.Attributes:
    return h.WorkflowExecutionFailed(
        failure=failure, retry_state=RetryState.IN_PROGRESS, task_completed_event_id=0
    )


def _upserted(a: Any) -> h.Attributes:
    return h.UpsertWorkflowSearchAttributes(
        search_attributes=payload_map_from(a.search_attributes.indexed_fields), task_completed_event_id=0
    )


def _modified(a: Any) -> h.Attributes:
    return h.WorkflowPropertiesModified(
        memo=payload_map_from(a.upserted_memo.fields), task_completed_event_id=0
    )


# --- activities and timers ------------------------------------------------------------------------------------------


def _scheduled(a: Any) -> h.Attributes:
    return h.ActivityTaskScheduled(
        activity_id=a.activity_id,
        activity_type=a.activity_type.name,
        spec=ActivitySpec(task_queue=a.task_queue.name),
        task_completed_event_id=0,
        arguments=payloads_from(a.input.payloads),
    )


def _activity_completed(a: Any) -> h.Attributes:
    return h.ActivityTaskCompleted(
        scheduled_event_id=a.scheduled_event_id,
        started_event_id=a.started_event_id,
        result=_one(a.result),
        identity=a.identity,
    )


def _activity_failed(a: Any) -> h.Attributes:
    return h.ActivityTaskFailed(
        scheduled_event_id=a.scheduled_event_id,
        started_event_id=a.started_event_id,
        failure=_failure(a),
        retry_state=_retry_state(a),
        identity=a.identity,
    )


def _activity_timed_out(a: Any) -> h.Attributes:
    return h.ActivityTaskTimedOut(
        scheduled_event_id=a.scheduled_event_id,
        started_event_id=a.started_event_id,
        failure=_failure(a),
        retry_state=_retry_state(a),
    )


def _activity_canceled(a: Any) -> h.Attributes:
    return h.ActivityTaskCanceled(
        scheduled_event_id=a.scheduled_event_id,
        started_event_id=a.started_event_id,
        cancel_requested_event_id=a.latest_cancel_requested_event_id,
        details=payloads_from(a.details.payloads),
        identity=a.identity,
    )


def _activity_cancel(a: Any) -> h.Attributes:
    return h.ActivityTaskCancelRequested(scheduled_event_id=a.scheduled_event_id, task_completed_event_id=0)


def _timer_started(a: Any) -> h.Attributes:
    return h.TimerStarted(
        timer_id=a.timer_id, duration_ns=nanos_from(a.start_to_fire_timeout), task_completed_event_id=0
    )


def _timer_fired(a: Any) -> h.Attributes:
    return h.TimerFired(timer_id=a.timer_id, started_event_id=a.started_event_id)


def _timer_canceled(a: Any) -> h.Attributes:
    return h.TimerCanceled(
        timer_id=a.timer_id, started_event_id=a.started_event_id, task_completed_event_id=0
    )


# --- others ---------------------------------------------------------------------------------------------------------


def _child_initiated(a: Any) -> h.Attributes:
    return o.StartChildWorkflowExecutionInitiated(
        namespace=a.namespace,
        workflow_id=a.workflow_id,
        workflow_type=a.workflow_type.name,
        spec=StartSpec(task_queue=a.task_queue.name),
        task_completed_event_id=0,
        arguments=payloads_from(a.input.payloads),
    )


def _child_start_failed(a: Any) -> h.Attributes:
    return o.StartChildWorkflowExecutionFailed(
        namespace=a.namespace,
        workflow_id=a.workflow_id,
        workflow_type=a.workflow_type.name,
        cause=o.StartChildFailedCause(a.cause or 1),
        initiated_event_id=a.initiated_event_id,
    )


def _child(a: Any) -> dict[str, Any]:
    return {
        "namespace": a.namespace,
        "workflow_id": a.workflow_execution.workflow_id,
        "workflow_type": a.workflow_type.name,
        "run_id": a.workflow_execution.run_id,
        "initiated_event_id": a.initiated_event_id,
    }


def _child_started(a: Any) -> h.Attributes:
    return o.ChildWorkflowExecutionStarted(**_child(a))


def _child_end(a: Any) -> dict[str, Any]:
    return {**_child(a), "started_event_id": a.started_event_id}


def _child_completed(a: Any) -> h.Attributes:
    return o.ChildWorkflowExecutionCompleted(**_child_end(a), result=_one(a.result))


def _child_failed(a: Any) -> h.Attributes:
    return o.ChildWorkflowExecutionFailed(**_child_end(a), failure=_failure(a), retry_state=_retry_state(a))


def _child_canceled(a: Any) -> h.Attributes:
    return o.ChildWorkflowExecutionCanceled(**_child_end(a), details=payloads_from(a.details.payloads))


def _child_timed_out(a: Any) -> h.Attributes:
    return o.ChildWorkflowExecutionTimedOut(**_child_end(a), retry_state=_retry_state(a))


def _child_terminated(a: Any) -> h.Attributes:
    return o.ChildWorkflowExecutionTerminated(**_child_end(a))


def _other(a: Any) -> dict[str, Any]:
    return {
        "namespace": a.namespace,
        "workflow_id": a.workflow_execution.workflow_id,
        "run_id": a.workflow_execution.run_id,
    }


def _signal_initiated(a: Any) -> h.Attributes:
    return o.SignalExternalWorkflowExecutionInitiated(
        **_other(a),
        signal_name=a.signal_name,
        arguments=payloads_from(a.input.payloads),
        child_only=a.child_workflow_only,
        task_completed_event_id=0,
    )


def _cancel_initiated(a: Any) -> h.Attributes:
    return o.RequestCancelExternalWorkflowExecutionInitiated(
        **_other(a), child_only=a.child_workflow_only, task_completed_event_id=0
    )


def _outcome(a: Any) -> dict[str, Any]:
    return {**_other(a), "initiated_event_id": a.initiated_event_id}


def _cause(a: Any) -> o.ExternalFailedCause:
    try:
        return o.ExternalFailedCause(a.cause)
    except ValueError:
        return o.ExternalFailedCause.EXTERNAL_WORKFLOW_EXECUTION_NOT_FOUND


def _signal_failed(a: Any) -> h.Attributes:
    return o.SignalExternalWorkflowExecutionFailed(**_outcome(a), cause=_cause(a))


def _signal_arrived(a: Any) -> h.Attributes:
    return o.ExternalWorkflowExecutionSignaled(**_outcome(a))


def _cancel_failed(a: Any) -> h.Attributes:
    return o.RequestCancelExternalWorkflowExecutionFailed(**_outcome(a), cause=_cause(a))


def _cancel_arrived(a: Any) -> h.Attributes:
    return o.ExternalWorkflowExecutionCancelRequested(**_outcome(a))


# --- updates --------------------------------------------------------------------------------------------------------


def _request(message: Any) -> u.UpdateRequest:
    arguments: Payloads = payloads_from(message.input.args.payloads)
    return u.UpdateRequest(
        update_id=message.meta.update_id,
        name=message.input.name,
        arguments=arguments,
        headers=payload_map_from(message.input.header.fields),
        identity=message.meta.identity,
    )


def _update_admitted(a: Any) -> h.Attributes:
    return u.WorkflowExecutionUpdateAdmitted(request=_request(a.request))


def _update_accepted(a: Any) -> h.Attributes:
    there = a.HasField("accepted_request")
    return u.WorkflowExecutionUpdateAccepted(
        update_id=a.accepted_request.meta.update_id if there else a.protocol_instance_id,
        sequencing_event_id=a.accepted_request_sequencing_event_id,
        request=_request(a.accepted_request) if there else None,
    )


def _update_completed(a: Any) -> h.Attributes:
    return u.WorkflowExecutionUpdateCompleted(
        update_id=a.meta.update_id, accepted_event_id=a.accepted_event_id
    )


_READ: dict[str, Callable[[Any], h.Attributes]] = {
    "workflow_execution_started": _started,
    "workflow_task_failed": _task_failed,
    "workflow_execution_signaled": _signaled,
    "workflow_execution_cancel_requested": _cancel_requested,
    "workflow_execution_completed": _completed,
    "workflow_execution_failed": _failed,
    "workflow_execution_canceled": _canceled,
    "workflow_execution_continued_as_new": _continued,
    "upsert_workflow_search_attributes": _upserted,
    "workflow_properties_modified": _modified,
    "activity_task_scheduled": _scheduled,
    "activity_task_completed": _activity_completed,
    "activity_task_failed": _activity_failed,
    "activity_task_timed_out": _activity_timed_out,
    "activity_task_canceled": _activity_canceled,
    "activity_task_cancel_requested": _activity_cancel,
    "timer_started": _timer_started,
    "timer_fired": _timer_fired,
    "timer_canceled": _timer_canceled,
    "start_child_workflow_execution_initiated": _child_initiated,
    "start_child_workflow_execution_failed": _child_start_failed,
    "child_workflow_execution_started": _child_started,
    "child_workflow_execution_completed": _child_completed,
    "child_workflow_execution_failed": _child_failed,
    "child_workflow_execution_canceled": _child_canceled,
    "child_workflow_execution_timed_out": _child_timed_out,
    "child_workflow_execution_terminated": _child_terminated,
    "signal_external_workflow_execution_initiated": _signal_initiated,
    "signal_external_workflow_execution_failed": _signal_failed,
    "external_workflow_execution_signaled": _signal_arrived,
    "request_cancel_external_workflow_execution_initiated": _cancel_initiated,
    "request_cancel_external_workflow_execution_failed": _cancel_failed,
    "external_workflow_execution_cancel_requested": _cancel_arrived,
    "workflow_execution_update_admitted": _update_admitted,
    "workflow_execution_update_accepted": _update_accepted,
    "workflow_execution_update_completed": _update_completed,
}
