"""Which version a worker is, as its author says it; checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hourglass._engine.versions import (
    VersioningBehavior,
    WorkerDeploymentVersion,
    check_behavior,
    check_version,
)
from hourglass.errors import UsageError

_UNSPECIFIED = VersioningBehavior.UNSPECIFIED


@dataclass(frozen=True)
class WorkerDeploymentConfig:
    """The version of a worker: one build of one deployment.

    Its workflows say, each for itself, whether their runs stay with the version (`@workflow.defn(versioning_behavior=…)`);
    `default_versioning_behavior` holds for those that say nothing. Without `use_worker_versioning` the build id is only
    shown to whoever looks.
    """

    version: WorkerDeploymentVersion
    use_worker_versioning: bool = True
    default_versioning_behavior: VersioningBehavior = _UNSPECIFIED


@dataclass(frozen=True)
class Versioning:
    """What an engine is told of a worker's version. With `needs_behavior` each workflow must say for itself whether it
    moves on.
    """

    build_id: str = ""
    version: WorkerDeploymentVersion | None = None
    default: VersioningBehavior = _UNSPECIFIED

    @property
    def needs_behavior(self) -> bool:
        """Whether each workflow must have a behaviour of its own."""
        return self.version is not None and self.default is _UNSPECIFIED


def checked_versioning(config: Any, build_id: str | None) -> Versioning:
    """What a worker was told about its version. Raises `UsageError`."""
    if config is None:
        return Versioning(build_id or "")
    if not isinstance(config, WorkerDeploymentConfig):
        raise UsageError(f"deployment_config must be a WorkerDeploymentConfig, not {type(config).__name__}")
    if build_id is not None:
        raise UsageError("give build_id or deployment_config, which has a build id, not both")
    version = check_version(config.version, "the version of a worker")
    default = check_behavior(config.default_versioning_behavior, "default_versioning_behavior")
    if config.use_worker_versioning:
        return Versioning("", version, default)
    if default is not _UNSPECIFIED:
        raise UsageError("default_versioning_behavior says nothing without use_worker_versioning")
    return Versioning(version.build_id)
