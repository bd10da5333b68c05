"""The calls about worker versions and deployments, and the versions in other messages. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus, WorkerVersioningMode

from hourglass._contract import deployments as dp
from hourglass._contract import service as sv
from hourglass._evaluator.specs import VersioningBehavior, WorkerDeploymentVersion
from hourglass._temporal.calls import CallScope, Rpc, message_of
from hourglass._temporal.protos import nanos_from, version_from

_STATUSES: dict[int, str] = {
    number: name.removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_")
    for name, number in WorkerDeploymentVersionStatus.items()
}
_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED


def set_current(request: dp.SetCurrentVersion, scope: CallScope) -> Rpc:
    """Make a version the current version of its deployment."""
    message = message_of(ws.SetWorkerDeploymentCurrentVersionRequest, request, scope)

    def read(data: bytes) -> dp.CurrentVersionSet:
        answer: Any = ws.SetWorkerDeploymentCurrentVersionResponse.FromString(data)
        return dp.CurrentVersionSet(version_in(answer, "previous_deployment_version"))

    return Rpc("set_worker_deployment_current_version", message, read)


def set_ramping(request: dp.SetRampingVersion, scope: CallScope) -> Rpc:
    """Make a version the ramping version of its deployment."""
    message = message_of(ws.SetWorkerDeploymentRampingVersionRequest, request, scope)

    def read(data: bytes) -> dp.RampingVersionSet:
        answer: Any = ws.SetWorkerDeploymentRampingVersionResponse.FromString(data)
        previous = version_in(answer, "previous_deployment_version")
        return dp.RampingVersionSet(previous, answer.previous_percentage)

    return Rpc("set_worker_deployment_ramping_version", message, read)


def describe(request: dp.DescribeDeployment, scope: CallScope) -> Rpc:
    """Return the description of a deployment."""
    message = ws.DescribeWorkerDeploymentRequest(
        namespace=scope.namespace, deployment_name=request.deployment_name
    )
    return Rpc("describe_worker_deployment", message, _described)


def _described(data: bytes) -> dp.DeploymentInfo:
    answer: Any = ws.DescribeWorkerDeploymentResponse.FromString(data)
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


ON_DEPLOYMENTS: dict[type[sv.Request[Any]], Callable[[Any, CallScope], Rpc]] = {
    dp.SetCurrentVersion: set_current,
    dp.SetRampingVersion: set_ramping,
    dp.DescribeDeployment: describe,
}


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
