"""The calls that only read (histories, outcomes, descriptions, lists and counts of workflows, pollers), and the
calls about namespaces, Nexus endpoints, search attributes, and worker deployments and versions. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import temporalio.api.enums.v1 as enums
import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import (
    HistoryEventFilterType,
    PendingActivityState,
    WorkerDeploymentVersionStatus,
    WorkerVersioningMode,
)
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    CreateNexusEndpointRequest,
    DeleteNexusEndpointRequest,
    ListNexusEndpointsRequest,
    ListSearchAttributesRequest,
)

from hourglass._contract import deployments as dp
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._contract.engine_status import QueueStats
from hourglass._contract.progress import ProgressRead, PublishedItem, ReadProgress, carried_by, new_items
from hourglass._evaluator.specs import ParentClosePolicy, VersioningBehavior, WorkerDeploymentVersion
from hourglass._temporal.calls import (
    LONG_POLL,
    ORDINARY,
    PATIENT,
    CallScope,
    Rpc,
    message_of,
    nothing,
    sending,
)
from hourglass._temporal.failures import failure_from
from hourglass._temporal.histories import event_to_json
from hourglass._temporal.protos import (
    nanos_from,
    payload_from,
    payload_map_from,
    payloads_from,
    put_seconds,
    version_from,
)
from hourglass.converter import decode_search_attribute
from hourglass.errors import NamespaceNotFoundError

_STATUSES: dict[int, str] = {
    number: name.removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_")
    for name, number in WorkerDeploymentVersionStatus.items()
}
_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED


def _current_set(answer: Any) -> dp.CurrentVersionSet:
    return dp.CurrentVersionSet(version_in(answer, "previous_deployment_version"))


def _ramping_set(answer: Any) -> dp.RampingVersionSet:
    return dp.RampingVersionSet(version_in(answer, "previous_deployment_version"), answer.previous_percentage)


def _deployment(answer: Any) -> dp.DeploymentInfo:
    info = answer.worker_deployment_info
    routing = info.routing_config
    versions = tuple(
        dp.KnownVersion(
            version=version_from(version_summary.deployment_version),
            status=_STATUSES.get(version_summary.status, str(version_summary.status)),
            create_time_ns=nanos_from(version_summary.create_time),
        )
        for version_summary in info.version_summaries
    )
    return dp.DeploymentInfo(
        name=info.name,
        current=version_in(routing, "current_deployment_version"),
        changed_ns=nanos_from(routing.current_version_changed_time),
        ramping=version_in(routing, "ramping_deployment_version"),
        ramping_percentage=routing.ramping_version_percentage,
        versions=tuple(sorted(versions, key=lambda version: -version.create_time_ns)),
    )


def version_in(message: Any, field: str) -> WorkerDeploymentVersion | None:
    """Return the version in a field of a message, or None if it is not set."""
    version = getattr(message, field)
    return version_from(version) if message.HasField(field) and version.build_id else None


def behavior_of(info: Any) -> VersioningBehavior:
    """Return the versioning behavior of a run: from its override, or else from its workflow."""
    override = info.versioning_override
    if override.HasField("pinned"):
        return VersioningBehavior.PINNED
    if override.WhichOneof("override") == "auto_upgrade":
        return VersioningBehavior.AUTO_UPGRADE
    return VersioningBehavior(info.behavior) if info.behavior in (1, 2) else VersioningBehavior.UNSPECIFIED


def run_version(info: Any) -> WorkerDeploymentVersion | None:
    """Return the version to which an override pins the run, or else the version that handled the run's last task."""
    if info.versioning_override.HasField("pinned"):
        return version_from(info.versioning_override.pinned.version)
    return version_in(info, "deployment_version")


def poller_version(poller: Any) -> WorkerDeploymentVersion | None:
    """Return the version of a polling worker, or None for an unversioned worker."""
    options = poller.deployment_options
    if not poller.HasField("deployment_options") or options.worker_versioning_mode != _VERSIONED:
        return None
    return version_from(options)


def wait_for_close(request: wf.WaitForClose, scope: CallScope) -> Rpc:
    """Wait until a run closes. If the run is still open after 20 s, the server answers without a result."""
    message = message_of(ws.GetWorkflowExecutionHistoryRequest, request, scope)
    message.wait_new_event = message.skip_archival = True
    message.history_event_filter_type = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
    open_still = wf.StillOpen(request.run_id)
    return Rpc(message, lambda answer: _outcome(answer.history.events, open_still), LONG_POLL, open_still)


def _outcome(events: Sequence[Any], open_still: wf.StillOpen) -> wf.Outcome:
    kind = events[-1].WhichOneof("attributes") if events else None
    read = _OUTCOMES.get(kind)
    return open_still if kind is None or read is None else read(getattr(events[-1], kind))


_OUTCOMES: dict[str | None, Callable[[Any], wf.Outcome]] = {
    "workflow_execution_completed_event_attributes": lambda end: wf.RunCompleted(
        payloads_from(end.result.payloads), end.new_execution_run_id
    ),
    "workflow_execution_failed_event_attributes": lambda end: wf.RunFailed(
        failure_from(end.failure), end.new_execution_run_id
    ),
    "workflow_execution_canceled_event_attributes": lambda end: wf.RunCanceled(
        payloads_from(end.details.payloads)
    ),
    "workflow_execution_terminated_event_attributes": lambda end: wf.RunTerminated(
        end.reason, payloads_from(end.details.payloads)
    ),
    "workflow_execution_timed_out_event_attributes": lambda end: wf.RunTimedOut(end.new_execution_run_id),
    "workflow_execution_continued_as_new_event_attributes": lambda end: wf.RunContinued(
        end.new_execution_run_id
    ),
}


def history(request: wf.GetHistory, scope: CallScope) -> Rpc:
    """Return a page of history events, or wait for new events."""
    if request.newest_first:
        message = message_of(ws.GetWorkflowExecutionHistoryReverseRequest, request, scope)
        message.maximum_page_size = request.page_size
        return Rpc(message, _page)
    message = message_of(ws.GetWorkflowExecutionHistoryRequest, request, scope)
    message.maximum_page_size = request.page_size
    message.wait_new_event = message.skip_archival = request.wait_new
    message.history_event_filter_type = int(request.event_filter)
    late = wf.HistoryPage((), request.next_page_token) if request.wait_new else None
    return Rpc(message, _page, LONG_POLL if request.wait_new else ORDINARY, late)


def _page(answer: Any) -> wf.HistoryPage:
    return wf.HistoryPage(
        tuple(event_to_json(event) for event in answer.history.events), answer.next_page_token
    )


def describe_namespace(request: dp.DescribeNamespace, scope: CallScope) -> Rpc:
    """Return the description of the namespace. Used to check that the server answers and has the namespace."""

    def read(answer: Any) -> dp.Namespace:
        info = answer.namespace_info
        # A deleted namespace is marked before it disappears.
        if info.state == enums.NamespaceState.NAMESPACE_STATE_DELETED:
            raise NamespaceNotFoundError(
                f"the namespace {scope.namespace!r} is being deleted on the server", status="NOT_FOUND"
            )
        return dp.Namespace(info.name)

    return Rpc(ws.DescribeNamespaceRequest(namespace=scope.namespace), read, retry=False)


def last_seen(request: dp.LastSeen, scope: CallScope) -> Rpc:
    """Return when an identity was last seen among the pollers of a queue."""

    def read(answer: Any) -> dp.Sighting:
        ours = [poller for poller in answer.pollers if poller.identity == request.polled_by]
        return dp.Sighting(max((our.last_access_time.ToNanoseconds() for our in ours), default=0))

    return Rpc(_describe(request, scope), read)


def pollers(request: dp.GetPollers, scope: CallScope) -> Rpc:
    """Return all pollers of a queue."""

    def read(answer: Any) -> dp.Pollers:
        workers = tuple(
            dp.Poller(poller.identity, poller.last_access_time.ToNanoseconds(), poller_version(poller))
            for poller in answer.pollers
        )
        current = version_in(answer.versioning_info, "current_deployment_version")
        ramping = version_in(answer.versioning_info, "ramping_deployment_version")
        stats = _stats(answer) if request.stats else None
        return dp.Pollers(workers, current=current, stats=stats, ramping=ramping)

    message = _describe(request, scope)
    message.report_stats = request.stats
    return Rpc(message, read)


def _stats(answer: ws.DescribeTaskQueueResponse) -> QueueStats | None:
    """Return the statistics of a queue, or None if the server does not report them (before 1.28)."""
    if not answer.HasField("stats"):
        return None
    stats = answer.stats
    return QueueStats(
        backlog=stats.approximate_backlog_count,
        backlog_age=stats.approximate_backlog_age.ToNanoseconds() / 1e9,
        add_rate=stats.tasks_add_rate,
        dispatch_rate=stats.tasks_dispatch_rate,
    )


def _describe(request: dp.LastSeen | dp.GetPollers, scope: CallScope) -> ws.DescribeTaskQueueRequest:
    kind = "ACTIVITY" if request.activities else "WORKFLOW"
    message = ws.DescribeTaskQueueRequest(
        namespace=scope.namespace, task_queue_type=enums.TaskQueueType.Value(f"TASK_QUEUE_TYPE_{kind}")
    )
    message.task_queue.name = request.task_queue
    return message


PENDING_STATES: dict[int, str] = {
    number: name.removeprefix("PENDING_ACTIVITY_STATE_") for name, number in PendingActivityState.items()
}


def _described(answer: Any) -> wf.Description:
    info = answer.workflow_execution_info
    metadata = answer.execution_config.user_metadata
    return wf.Description(
        summary=_summary(info),
        pending_activities=tuple(_pending(activity) for activity in answer.pending_activities),
        task_attempt=answer.pending_workflow_task.attempt,
        first_execution_run_id=info.first_run_id,
        static_summary=payload_from(metadata.summary) if metadata.HasField("summary") else None,
        static_details=payload_from(metadata.details) if metadata.HasField("details") else None,
        pending_children=tuple(_child(child) for child in answer.pending_children),
        versioning_behavior=behavior_of(info.versioning_info),
        deployment_version=run_version(info.versioning_info),
        time_skipping=_time_skipping(answer.workflow_extended_info),
    )


def _time_skipping(info: Any) -> wf.TimeSkippingState | None:
    if not info.HasField("time_skipping_info"):
        return None
    state = info.time_skipping_info
    config = state.effective_config
    return wf.TimeSkippingState(
        current_time_ns=nanos_from(state.current_time),
        config=wf.TimeSkippingConfig(
            enabled=config.enabled,
            disable_propagation=config.disable_propagation,
            max_session_skip_count=config.max_session_skip_count,
        ),
        skips=state.current_session_skip_count,
    )


def _pending(activity: Any) -> wf.PendingActivity:
    return wf.PendingActivity(
        activity_id=activity.activity_id,
        activity_type=activity.activity_type.name,
        state=PENDING_STATES.get(activity.state, str(activity.state)),
        task_queue=activity.activity_options.task_queue.name,
        attempt=activity.attempt,
        maximum_attempts=activity.maximum_attempts,
        last_failure=failure_from(activity.last_failure) if activity.HasField("last_failure") else None,
        scheduled_time_ns=nanos_from(activity.scheduled_time),
        next_attempt_time_ns=nanos_from(activity.next_attempt_schedule_time),
        last_started_time_ns=nanos_from(activity.last_started_time),
        last_worker_identity=activity.last_worker_identity,
        last_heartbeat_time_ns=nanos_from(activity.last_heartbeat_time),
    )


def _child(child: Any) -> wf.PendingChild:
    return wf.PendingChild(
        workflow_id=child.workflow_id,
        run_id=child.run_id,
        workflow_type=child.workflow_type_name,
        parent_close_policy=ParentClosePolicy(child.parent_close_policy),
    )


def _summary(info: Any) -> wf.WorkflowSummary:
    return wf.WorkflowSummary(
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


def _status(number: int) -> wf.WorkflowStatus:
    try:
        return wf.WorkflowStatus(number)
    except ValueError:
        return wf.WorkflowStatus.UNSPECIFIED  # from a newer server


def _listed(answer: Any) -> wf.Page:
    return wf.Page(tuple(_summary(info) for info in answer.executions), answer.next_page_token)


def counted(answer: Any) -> wf.Count:
    """Return a count, and its groups."""
    return wf.Count(answer.count, tuple(_group_from(group) for group in answer.groups))


def _group_from(group: Any) -> wf.CountGroup:
    values = tuple(decode_search_attribute(payload_from(value)) for value in group.group_values)
    return wf.CountGroup(values, group.count)


def create_namespace(request: dp.CreateNamespace, scope: CallScope) -> Rpc:
    """Create a namespace."""
    message: Any = ws.RegisterNamespaceRequest(namespace=request.name, description=request.description)
    put_seconds(message.workflow_execution_retention_period, request.retention)
    return Rpc(message)


def create_nexus_endpoint(request: dp.CreateNexusEndpoint, scope: CallScope) -> Rpc:
    """Create a Nexus endpoint."""
    message: Any = CreateNexusEndpointRequest()
    spec = message.spec
    spec.name = request.name
    spec.target.worker.namespace = request.namespace or scope.namespace
    spec.target.worker.task_queue = request.task_queue
    if request.description:
        spec.description.data = json.dumps(request.description).encode()
        spec.description.metadata["encoding"] = b"json/plain"
    return Rpc(message)


def find_nexus_endpoint(request: dp.FindNexusEndpoint, scope: CallScope) -> Rpc:
    """Return a Nexus endpoint."""

    def read(answer: Any) -> dp.NexusEndpoint:
        for endpoint in answer.endpoints:
            return dp.NexusEndpoint(id=endpoint.id, version=endpoint.version)
        return dp.NexusEndpoint()

    return Rpc(ListNexusEndpointsRequest(name=request.name), read)


def delete_nexus_endpoint(request: dp.DeleteNexusEndpoint, scope: CallScope) -> Rpc:
    """Delete a Nexus endpoint."""
    return Rpc(DeleteNexusEndpointRequest(id=request.id, version=request.version))


def add_search_attributes(request: dp.AddSearchAttributes, scope: CallScope) -> Rpc:
    """Create search attributes."""
    message: Any = AddSearchAttributesRequest(namespace=scope.namespace)
    for name, kind in request.types.items():
        message.search_attributes[name] = _NUMBERS[kind]
    return Rpc(message, nothing, PATIENT)


def list_search_attributes(request: dp.ListSearchAttributes, scope: CallScope) -> Rpc:
    """Return the search attributes that users have created."""
    names = {number: name for name, number in _NUMBERS.items()}

    def read(answer: Any) -> dp.SearchAttributeTypes:
        attributes = answer.custom_attributes
        return dp.SearchAttributeTypes({name: names.get(number, "") for name, number in attributes.items()})

    return Rpc(ListSearchAttributesRequest(namespace=scope.namespace), read)


_NUMBERS = {"Text": 1, "Keyword": 2, "Int": 3, "Double": 4, "Bool": 5, "Datetime": 6, "KeywordList": 7}
"""Temporal's numbers of search attribute types."""

_SOON, _LATER = 0.2, 1.0
"""The pauses in seconds between a follower's requests, which must poll because a server sends no notifications
about heartbeats.
"""


def read_progress(request: ReadProgress, scope: CallScope) -> Rpc:
    """Return the progress that the heartbeats of a run's activities carry."""
    message = message_of(ws.DescribeWorkflowExecutionRequest, request, scope)
    seen = {position.activity_id: (position.attempt, position.next) for position in request.seen}

    def read(answer: Any) -> ProgressRead:
        items: list[PublishedItem] = []
        is_any = False
        for pending in answer.pending_activities:
            carried = carried_by(payloads_from(pending.heartbeat_details.payloads))
            if carried is not None:
                is_any = True
                items += new_items(
                    carried, request.name, pending.activity_id, pending.activity_type.name, seen
                )
        return ProgressRead(tuple(items), _SOON if is_any else _LATER)

    return Rpc(message, read)


VIEW_CALLS: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    **sending(
        {
            dp.SetCurrentVersion: (ws.SetWorkerDeploymentCurrentVersionRequest, _current_set),
            dp.SetRampingVersion: (ws.SetWorkerDeploymentRampingVersionRequest, _ramping_set),
            dp.DescribeDeployment: (ws.DescribeWorkerDeploymentRequest, _deployment),
            wf.DescribeWorkflow: (ws.DescribeWorkflowExecutionRequest, _described),
            wf.ListWorkflows: (ws.ListWorkflowExecutionsRequest, _listed),
            wf.CountWorkflows: (ws.CountWorkflowExecutionsRequest, counted),
        }
    ),
    wf.WaitForClose: wait_for_close,
    wf.GetHistory: history,
    dp.CreateNamespace: create_namespace,
    dp.CreateNexusEndpoint: create_nexus_endpoint,
    dp.FindNexusEndpoint: find_nexus_endpoint,
    dp.DeleteNexusEndpoint: delete_nexus_endpoint,
    dp.AddSearchAttributes: add_search_attributes,
    dp.ListSearchAttributes: list_search_attributes,
    dp.DescribeNamespace: describe_namespace,
    dp.LastSeen: last_seen,
    dp.GetPollers: pollers,
    ReadProgress: read_progress,
}
