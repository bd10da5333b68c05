"""What events say of versions of workers, as JSON."""

from __future__ import annotations

from hourglass._embedded.events.json_parts import Json
from hourglass._engine.versions import (
    ContinueAsNewVersioningBehavior,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)


def version_json(version: WorkerDeploymentVersion | None) -> Json | None:
    """A version."""
    if version is None:
        return None
    return {"deploymentName": version.deployment_name, "buildId": version.build_id}


def override_json(override: VersioningOverride | None) -> Json | None:
    """What a run was told from outside."""
    if override is None:
        return None
    if isinstance(override, PinnedVersioningOverride):
        pinned = {"behavior": "PINNED_OVERRIDE_BEHAVIOR_PINNED", "version": version_json(override.version)}
        return {"pinned": pinned}
    return {"autoUpgrade": True}


def declined_json(version: WorkerDeploymentVersion | None) -> Json | None:
    """The version that a run could have moved to when it was begun, and did not."""
    return None if version is None else {"deploymentVersion": version_json(version)}


def continuing_json(behavior: ContinueAsNewVersioningBehavior) -> str | None:
    """Which version a run begins on that another continues as, where that was said."""
    return f"CONTINUE_AS_NEW_VERSIONING_BEHAVIOR_{behavior.name}" if behavior else None


def worker_version_json(version: WorkerDeploymentVersion | None, behavior: VersioningBehavior) -> Json:
    """Whose answer a task had, and what becomes of the run."""
    if version is None:
        return {}
    return {
        "workerVersion": {"buildId": version.build_id},
        "versioningBehavior": f"VERSIONING_BEHAVIOR_{behavior.name}" if behavior else None,
        "workerDeploymentName": version.deployment_name,
        "deploymentVersion": version_json(version),
    }
