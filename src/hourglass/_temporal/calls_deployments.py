"""The calls about worker versions and deployments, and the versions in other messages. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus, WorkerVersioningMode

from hourglass._contract import deployments as dp
from hourglass._evaluator.specs import VersioningBehavior, WorkerDeploymentVersion
from hourglass._temporal.calls import sending
from hourglass._temporal.protos import nanos_from, version_from

_STATUSES: dict[int, str] = {
    number: name.removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_")
    for name, number in WorkerDeploymentVersionStatus.items()
}
_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED


def _current_set(answer: Any) -> dp.CurrentVersionSet:
    return dp.CurrentVersionSet(version_in(answer, "previous_deployment_version"))


def _ramping_set(answer: Any) -> dp.RampingVersionSet:
    return dp.RampingVersionSet(version_in(answer, "previous_deployment_version"), answer.previous_percentage)


def _described(answer: Any) -> dp.DeploymentInfo:
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


ON_DEPLOYMENTS = sending(
    {
        dp.SetCurrentVersion: (ws.SetWorkerDeploymentCurrentVersionRequest, _current_set),
        dp.SetRampingVersion: (ws.SetWorkerDeploymentRampingVersionRequest, _ramping_set),
        dp.DescribeDeployment: (ws.DescribeWorkerDeploymentRequest, _described),
    }
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
