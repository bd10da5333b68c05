"""Calls that look at workflows: describe, list, count. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import PendingActivityState

from hourglass._contract import service as sv
from hourglass._engine.commands import ParentClosePolicy
from hourglass._temporal.calls import Call, Scope, put_execution
from hourglass._temporal.calls_deployments import behavior_of, run_version
from hourglass._temporal.failures import failure_from
from hourglass._temporal.payloads import nanos_from, payload_from, payload_map_from
from hourglass.converter import decode_search_attribute

_STATES: dict[int, str] = {
    number: name.removeprefix("PENDING_ACTIVITY_STATE_") for name, number in PendingActivityState.items()
}


def describe(request: sv.DescribeWorkflow, scope: Scope) -> Call:
    """Look at one run."""
    message: Any = ws.DescribeWorkflowExecutionRequest(namespace=scope.namespace)
    put_execution(message.execution, request.workflow_id, request.run_id)
    return Call("describe_workflow_execution", message, _described)


def _described(data: bytes) -> sv.Description:
    answer: Any = ws.DescribeWorkflowExecutionResponse.FromString(data)
    info = answer.workflow_execution_info
    metadata = answer.execution_config.user_metadata
    return sv.Description(
        summary=_summary(info),
        pending_activities=tuple(_pending(activity) for activity in answer.pending_activities),
        task_attempt=answer.pending_workflow_task.attempt,
        first_execution_run_id=info.first_run_id,
        static_summary=payload_from(metadata.summary) if metadata.HasField("summary") else None,
        static_details=payload_from(metadata.details) if metadata.HasField("details") else None,
        pending_children=tuple(_child(child) for child in answer.pending_children),
        versioning_behavior=behavior_of(info.versioning_info),
        deployment_version=run_version(info.versioning_info),
    )


def _pending(activity: Any) -> sv.PendingActivity:
    return sv.PendingActivity(
        activity_id=activity.activity_id,
        activity_type=activity.activity_type.name,
        state=_STATES.get(activity.state, str(activity.state)),
        attempt=activity.attempt,
        maximum_attempts=activity.maximum_attempts,
        last_failure=failure_from(activity.last_failure) if activity.HasField("last_failure") else None,
        next_attempt_time_ns=nanos_from(activity.next_attempt_schedule_time),
        last_started_time_ns=nanos_from(activity.last_started_time),
        last_worker_identity=activity.last_worker_identity,
    )


def _child(child: Any) -> sv.PendingChild:
    return sv.PendingChild(
        workflow_id=child.workflow_id,
        run_id=child.run_id,
        workflow_type=child.workflow_type_name,
        parent_close_policy=ParentClosePolicy(child.parent_close_policy),
    )


def _summary(info: Any) -> sv.WorkflowSummary:
    return sv.WorkflowSummary(
        workflow_id=info.execution.workflow_id,
        run_id=info.execution.run_id,
        workflow_type=info.type.name,
        status=_status(info.status),
        task_queue=info.task_queue,
        start_time_ns=nanos_from(info.start_time),
        execution_time_ns=nanos_from(info.execution_time),
        close_time_ns=nanos_from(info.close_time),
        history_length=info.history_length,
        parent_workflow_id=info.parent_execution.workflow_id,
        parent_run_id=info.parent_execution.run_id,
        root_workflow_id=info.root_execution.workflow_id,
        root_run_id=info.root_execution.run_id,
        memo=payload_map_from(info.memo.fields),
        search_attributes=payload_map_from(info.search_attributes.indexed_fields),
    )


def _status(number: int) -> sv.WorkflowStatus:
    try:
        return sv.WorkflowStatus(number)
    except ValueError:
        return sv.WorkflowStatus.UNSPECIFIED  # of a newer server


def listing(request: sv.ListWorkflows, scope: Scope) -> Call:
    """List a page of runs."""
    message = ws.ListWorkflowExecutionsRequest(
        namespace=scope.namespace,
        page_size=request.page_size,
        next_page_token=request.next_page_token,
        query=request.query,
    )
    return Call("list_workflow_executions", message, _listed)


def _listed(data: bytes) -> sv.Page:
    answer = ws.ListWorkflowExecutionsResponse.FromString(data)
    return sv.Page(tuple(_summary(info) for info in answer.executions), answer.next_page_token)


def count(request: sv.CountWorkflows, scope: Scope) -> Call:
    """Count runs."""
    message = ws.CountWorkflowExecutionsRequest(namespace=scope.namespace, query=request.query)
    return Call("count_workflow_executions", message, _counted)


def _counted(data: bytes) -> sv.Count:
    answer = ws.CountWorkflowExecutionsResponse.FromString(data)
    groups = tuple(
        sv.CountGroup(
            tuple(decode_search_attribute(payload_from(value)) for value in group.group_values), group.count
        )
        for group in answer.groups
    )
    return sv.Count(answer.count, groups)
