"""Clients: start workflows, find them, talk to them. `Client` blocks, `AsyncClient` is awaited.

The map: `_blocking…` and `_async…` are the two faces, with equal names; `_operations`, `_updates`, `_reset`,
`_with_start`, `_schedules`, `_activities`, `_task_queues` and `_deployments` hold every operation, once; `_session` runs
them over a `_link`; `_options`, `_values`, `_schedule_data` and `_schedule_forms` turn what the caller says and gets into
data; `_waiting` waits for results; `_codec_edge` seals what leaves.
"""

from __future__ import annotations

from hourglass._contract.service import (
    IdConflictPolicy,
    QueryRejectCondition,
    TLSConfig,
    UpdateStage,
    WorkflowStatus,
)
from hourglass._engine.commands import IdReusePolicy
from hourglass._engine.versions import (
    AutoUpgradeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.client._async import AsyncClient
from hourglass.client._async_handles import (
    AsyncActivityHandle,
    AsyncScheduleHandle,
    AsyncUpdateHandle,
    AsyncWithStart,
    AsyncWorkflowHandle,
)
from hourglass.client._blocking import Client
from hourglass.client._blocking_handles import (
    ActivityHandle,
    ScheduleHandle,
    UpdateHandle,
    WithStart,
    WorkflowHandle,
)
from hourglass.client._bulk import BulkResult
from hourglass.client._deployments import (
    DeploymentDescription,
    DeploymentVersionInfo,
    PollerInfo,
    TaskQueueDescription,
)
from hourglass.client._options import StartOptions, UpdateOptions
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
from hourglass.client._values import (
    PendingActivityInfo,
    PendingChildInfo,
    WorkflowDescription,
    WorkflowExecution,
    WorkflowExecutionCount,
    WorkflowExecutionCountAggregationGroup,
)

__all__ = [
    "ActivityHandle",
    "AsyncActivityHandle",
    "AsyncClient",
    "AsyncScheduleHandle",
    "AsyncUpdateHandle",
    "AsyncWithStart",
    "AsyncWorkflowHandle",
    "AutoUpgradeVersioningOverride",
    "BulkResult",
    "Client",
    "DeploymentDescription",
    "DeploymentVersionInfo",
    "IdConflictPolicy",
    "IdReusePolicy",
    "PendingActivityInfo",
    "PendingChildInfo",
    "PinnedVersioningOverride",
    "PollerInfo",
    "QueryRejectCondition",
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
    "StartOptions",
    "TLSConfig",
    "TaskQueueDescription",
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
    "WorkflowHandle",
    "WorkflowStatus",
]
