"""Clients: start workflows, find them, talk to them. `Client` blocks, `AsyncClient` is awaited.

_activities           operations on activities that are completed from outside
_async                the asynchronous face
_async_activities     activities, for the asynchronous face
_async_handles        handles of the asynchronous face
_blocking             the blocking face
_blocking_activities  activities, for the blocking face
_blocking_handles     handles of the blocking face
_bulk                 one thing done to many workflows
_calls                what a client is asked to do, as its interceptors see it
_deployments          task queues and the workers on them; versions of workers
_faces                what the blocking and the asynchronous face share
_interception         what may stand between callers and what they call: interceptors, and their chains
_operations           operations on workflows, written once for both faces
_options              options of a start, checked and built into a request
_plugins              plugins: what one may change of clients, workers and replayers
_reset                where to reset a run to
_schedule_data        schedules as authors write them and clients show them, and as they travel
_schedules            operations on schedules
_services             a server's gRPC services as they are
_session              a session: a link to the target, how values travel over it, how operations are run
_standalone           activities that belong to no workflow: operations, and how they are shown
_starts               operations that start workflows
_updates              operations on updates
_values               workflows as clients show them: lists, counts, descriptions
_waiting              waiting for a run to close, how it ended, and what a client says meanwhile
"""

from __future__ import annotations

from hourglass._contract.activities import ActivityExecutionStatus
from hourglass._contract.transport import (
    DnsLoadBalancingConfig,
    GrpcCompression,
    HttpConnectProxyConfig,
    KeepAliveConfig,
    PayloadLimitsConfig,
    RetryConfig,
    TLSConfig,
)
from hourglass._contract.workflows import (
    HistoryEventFilter,
    IdConflictPolicy,
    QueryRejectCondition,
    TimeSkippingConfig,
    UpdateStage,
    WorkflowStatus,
)
from hourglass._evaluator.specs import (
    AutoUpgradeVersioningOverride,
    IdReusePolicy,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.client._async import AsyncClient
from hourglass.client._async_activities import AsyncActivityExecutionHandle, AsyncActivityHandle
from hourglass.client._async_handles import (
    AsyncScheduleHandle,
    AsyncUpdateHandle,
    AsyncWithStart,
    AsyncWorkflowHandle,
)
from hourglass.client._blocking import Client
from hourglass.client._blocking_activities import ActivityExecutionHandle, ActivityHandle
from hourglass.client._blocking_handles import ScheduleHandle, UpdateHandle, WithStart, WorkflowHandle
from hourglass.client._bulk import BulkResult
from hourglass.client._deployments import (
    DeploymentDescription,
    DeploymentVersionInfo,
    PollerInfo,
    TaskQueueDescription,
    TaskQueueStats,
)
from hourglass.client._options import RpcOptions, StartOptions, UpdateOptions, WorkflowOptionsUpdate
from hourglass.client._schedule_data import (
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleDescription,
    ScheduleInfo,
    ScheduleIntervalSpec,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleStartOptions,
    ScheduleState,
)
from hourglass.client._services import AsyncRawService, RawService
from hourglass.client._standalone import (
    ActivityExecution,
    ActivityExecutionDescription,
    ActivityExecutionOptions,
    ActivityExecutionPage,
    ActivityOptionsUpdate,
    StartActivityOptions,
)
from hourglass.client._values import (
    HistoryEventPage,
    PendingActivityInfo,
    PendingChildInfo,
    PendingUpdateInfo,
    TimeSkippingInfo,
    WorkflowDescription,
    WorkflowExecution,
    WorkflowExecutionCount,
    WorkflowExecutionCountAggregationGroup,
    WorkflowExecutionPage,
)

__all__ = [
    "ActivityExecution",
    "ActivityExecutionDescription",
    "ActivityExecutionHandle",
    "ActivityExecutionOptions",
    "ActivityExecutionPage",
    "ActivityExecutionStatus",
    "ActivityHandle",
    "ActivityOptionsUpdate",
    "AsyncActivityExecutionHandle",
    "AsyncActivityHandle",
    "AsyncClient",
    "AsyncRawService",
    "AsyncScheduleHandle",
    "AsyncUpdateHandle",
    "AsyncWithStart",
    "AsyncWorkflowHandle",
    "AutoUpgradeVersioningOverride",
    "BulkResult",
    "Client",
    "DeploymentDescription",
    "DeploymentVersionInfo",
    "DnsLoadBalancingConfig",
    "GrpcCompression",
    "HistoryEventFilter",
    "HistoryEventPage",
    "HttpConnectProxyConfig",
    "IdConflictPolicy",
    "IdReusePolicy",
    "KeepAliveConfig",
    "OneTimeVersioningOverride",
    "PayloadLimitsConfig",
    "PendingActivityInfo",
    "PendingChildInfo",
    "PendingUpdateInfo",
    "PinnedVersioningOverride",
    "PollerInfo",
    "QueryRejectCondition",
    "RawService",
    "RetryConfig",
    "RpcOptions",
    "Schedule",
    "ScheduleActionExecutionStartWorkflow",
    "ScheduleActionResult",
    "ScheduleActionStartWorkflow",
    "ScheduleBackfill",
    "ScheduleCalendarSpec",
    "ScheduleDescription",
    "ScheduleHandle",
    "ScheduleInfo",
    "ScheduleIntervalSpec",
    "ScheduleListDescription",
    "ScheduleOverlapPolicy",
    "SchedulePolicy",
    "ScheduleRange",
    "ScheduleSpec",
    "ScheduleStartOptions",
    "ScheduleState",
    "StartActivityOptions",
    "StartOptions",
    "TLSConfig",
    "TaskQueueDescription",
    "TaskQueueStats",
    "TimeSkippingConfig",
    "TimeSkippingInfo",
    "UpdateHandle",
    "UpdateOptions",
    "UpdateStage",
    "VersioningBehavior",
    "VersioningOverride",
    "WithStart",
    "WorkerDeploymentVersion",
    "WorkflowDescription",
    "WorkflowExecution",
    "WorkflowExecutionCount",
    "WorkflowExecutionCountAggregationGroup",
    "WorkflowExecutionPage",
    "WorkflowHandle",
    "WorkflowOptionsUpdate",
    "WorkflowStatus",
]
