"""What a client can ask about versions of workers: which one is current, which there are."""

from __future__ import annotations

import msgspec

from hourglass._bridge.service import Request
from hourglass._engine.versions import WorkerDeploymentVersion


class CurrentVersionSet(msgspec.Struct, frozen=True):
    """Another version is current; `previous` was before, None if none was."""

    previous: WorkerDeploymentVersion | None = None


class SetCurrentVersion(Request[CurrentVersionSet], frozen=True, kw_only=True):
    """Send new runs, and those that move on, to workers of this build; an empty one: to workers without a version."""

    deployment_name: str
    build_id: str
    identity: str = ""
    ignore_missing_task_queues: bool = False


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that workers have had. `status` is Temporal's name for its part, such as `CURRENT` or `DRAINED`."""

    version: WorkerDeploymentVersion
    status: str = ""
    create_time_ns: int = 0


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its versions, newest first, and which of them is current."""

    name: str
    current: WorkerDeploymentVersion | None = None
    changed_ns: int = 0
    versions: tuple[KnownVersion, ...] = ()


class DescribeDeployment(Request[DeploymentInfo], frozen=True, kw_only=True):
    """Look at a deployment."""

    deployment_name: str


DEPLOYMENT_REQUESTS = (SetCurrentVersion, DescribeDeployment)
