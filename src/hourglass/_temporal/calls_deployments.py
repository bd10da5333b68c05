"""Calls about versions of workers: which is current, which there are, and what runs and queues say of them. Pure."""

from __future__ import annotations

from typing import Any

import temporalio.api.workflowservice.v1 as ws
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus, WorkerVersioningMode

from hourglass._contract import service as sd
from hourglass._engine.versions import (
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._temporal.calls import Call, Scope
from hourglass._temporal.payloads import nanos_from

_STATUSES: dict[int, str] = {
    number: name.removeprefix("WORKER_DEPLOYMENT_VERSION_STATUS_")
    for name, number in WorkerDeploymentVersionStatus.items()
}
_VERSIONED = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
_PIN = 1  # PINNED_OVERRIDE_BEHAVIOR_PINNED


def set_current(request: sd.SetCurrentVersion, scope: Scope) -> Call:
    """Make a version current."""
    message = ws.SetWorkerDeploymentCurrentVersionRequest(
        namespace=scope.namespace,
        deployment_name=request.deployment_name,
        build_id=request.build_id,
        identity=request.identity or scope.identity,
        ignore_missing_task_queues=request.ignore_missing_task_queues,
    )

    def read(data: bytes) -> sd.CurrentVersionSet:
        answer: Any = ws.SetWorkerDeploymentCurrentVersionResponse.FromString(data)
        return sd.CurrentVersionSet(version_in(answer, "previous_deployment_version"))

    return Call("set_worker_deployment_current_version", message, read)


def describe(request: sd.DescribeDeployment, scope: Scope) -> Call:
    """Look at a deployment."""
    message = ws.DescribeWorkerDeploymentRequest(
        namespace=scope.namespace, deployment_name=request.deployment_name
    )
    return Call("describe_worker_deployment", message, _described)


def _described(data: bytes) -> sd.DeploymentInfo:
    answer: Any = ws.DescribeWorkerDeploymentResponse.FromString(data)
    info = answer.worker_deployment_info
    routing = info.routing_config
    versions = tuple(
        sd.KnownVersion(
            version=_version(each.deployment_version),
            status=_STATUSES.get(each.status, str(each.status)),
            create_time_ns=nanos_from(each.create_time),
        )
        for each in info.version_summaries
    )
    return sd.DeploymentInfo(
        name=info.name,
        current=version_in(routing, "current_deployment_version"),
        changed_ns=nanos_from(routing.current_version_changed_time),
        versions=tuple(sorted(versions, key=lambda each: -each.create_time_ns)),
    )


# --- what other messages say of versions ----------------------------------------------------------------------


def version_in(message: Any, field: str) -> WorkerDeploymentVersion | None:
    """The version in a field of a message, if there is one."""
    found = getattr(message, field)
    return _version(found) if message.HasField(field) and found.build_id else None


def _version(message: Any) -> WorkerDeploymentVersion:
    return WorkerDeploymentVersion(message.deployment_name, message.build_id)


def put_override(message: Any, override: VersioningOverride) -> None:
    """Write an override, in its own words and in those of servers before 1.29."""
    if isinstance(override, PinnedVersioningOverride):
        message.behavior = int(VersioningBehavior.PINNED)
        message.pinned_version = override.version.to_canonical_string()
        message.pinned.version.deployment_name = override.version.deployment_name
        message.pinned.version.build_id = override.version.build_id
        message.pinned.behavior = _PIN
    else:
        message.behavior = int(VersioningBehavior.AUTO_UPGRADE)
        message.auto_upgrade = True


def behavior_of(info: Any) -> VersioningBehavior:
    """What holds for a run: what it was told from outside, or what its workflow says."""
    override = info.versioning_override
    if override.HasField("pinned"):
        return VersioningBehavior.PINNED
    if override.WhichOneof("override") == "auto_upgrade":
        return VersioningBehavior.AUTO_UPGRADE
    return VersioningBehavior(info.behavior) if info.behavior in (1, 2) else VersioningBehavior.UNSPECIFIED


def run_version(info: Any) -> WorkerDeploymentVersion | None:
    """The version that a run is pinned to, or that handled its last task."""
    if info.versioning_override.HasField("pinned"):
        return _version(info.versioning_override.pinned.version)
    return version_in(info, "deployment_version")


def poller_version(poller: Any) -> WorkerDeploymentVersion | None:
    """The version of somebody who polls; None for one without."""
    options = poller.deployment_options
    if not poller.HasField("deployment_options") or options.worker_versioning_mode != _VERSIONED:
        return None
    return _version(options)
