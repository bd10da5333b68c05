"""Clients: start workflows, find them, and send them messages. `Client` blocks, `AsyncClient` is awaited.

A client method builds an operation with checked and encoded arguments. The session runs the operation: first through the
interceptors, then on the control loop. Operations are written once; the blocking client is generated from the asynchronous one.

_activities           operations on activities that complete asynchronously
_async                `AsyncClient`
_async_activities     activities of `AsyncClient`
_async_handles        handles of `AsyncClient`
_async_requests       methods of handles that only send a request, generated from the requests
_blocking             `Client`, generated
_blocking_activities  activities of `Client`, generated
_blocking_handles     handles of `Client`, generated
_blocking_requests    the same methods for `Client`, generated
_bulk                 one operation on many workflows
_calls                client calls as interceptors see them, and the interceptor method of each call
_codec_edge           applying the codec to requests and answers
_deployments          task queues, their workers, and worker versions
_faces                the parts that both clients share
_interception         `Interceptor`, and the chains of interceptors
_link                 the connection of a client: opened on first use, and reopened in a forked child
_operations           operations on workflows
_options              options of a start: checks, and the request built from them
_outbound             the outbound interceptors of both clients, generated from `_calls`
_plugins              plugins: changes to the configuration of clients, workers and replayers
_reset                the choice of the event to which a run is reset
_schedule_data        schedules with their actions' values, as users define them and clients display them
_schedule_forms       conversion of schedules to requests, and back
_schedules            operations on schedules
_services             the raw gRPC services of a server
_session              operations, and the session that runs them
_standalone           activities without a workflow: operations and descriptions
_starts               operations that start workflows
_updates              operations on updates
_values               lists, counts and descriptions of workflows
_wait_notices         log messages while a client waits for a run that cannot proceed
_waiting              waiting for a run to close, and its result
"""

from __future__ import annotations

from hourglass._contract.activities import ActivityExecutionStatus
from hourglass._contract.schedule_specs import (
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleBackfill,
    ScheduleCalendarSpec,
    ScheduleInfo,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleRange,
    ScheduleSpec,
    ScheduleState,
)
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
    ScheduleActionStartWorkflow,
    ScheduleDescription,
    ScheduleListDescription,
    ScheduleStartOptions,
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
