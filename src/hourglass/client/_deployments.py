"""Versions of workers: which is current, and which there are. The data, and the operations that ask."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from hourglass._contract.service import (
    CurrentVersionSet,
    DeploymentInfo,
    DescribeDeployment,
    SetCurrentVersion,
)
from hourglass._engine.options import Duration, optional_seconds, seconds
from hourglass._engine.versions import WorkerDeploymentVersion, check_deployment_name, check_version
from hourglass.client._session import Operation, Session, asking
from hourglass.client._values import time_from
from hourglass.errors import ServiceError

_PAUSE = 0.1


@dataclass(frozen=True, kw_only=True)
class DeploymentVersionInfo:
    """A version that workers have had. `status` is Temporal's word for its part: `CURRENT`, `INACTIVE`, and on a server
    also `DRAINING` (pinned runs are open) and `DRAINED`.
    """

    version: WorkerDeploymentVersion
    status: str
    create_time: datetime | None


@dataclass(frozen=True, kw_only=True)
class DeploymentDescription:
    """A deployment: its versions, newest first, and the one that is current; None: workers without a version are."""

    name: str
    current: WorkerDeploymentVersion | None
    changed_time: datetime | None
    versions: tuple[DeploymentVersionInfo, ...]


def set_current_version(
    session: Session,
    deployment: str,
    build_id: str | None,
    *,
    wait: Duration,
    ignore_missing_task_queues: bool,
) -> Operation[WorkerDeploymentVersion | None]:
    """Make a version current; gives the one that was. A version nobody has heard of may be on its way."""
    check_deployment_name(deployment)
    if build_id is not None:
        check_version(WorkerDeploymentVersion(deployment, build_id), "the version")
    limit = seconds(wait, "wait")
    request = SetCurrentVersion(
        deployment_name=deployment,
        build_id=build_id or "",
        identity=session.identity,
        ignore_missing_task_queues=ignore_missing_task_queues,
    )

    async def ask(session: Session) -> CurrentVersionSet:
        deadline = asyncio.get_running_loop().time() + limit
        while True:
            try:
                return await session.call(request)
            except ServiceError as error:
                # A server hears of a version a moment after its first worker has begun to poll.
                if error.status not in ("NOT_FOUND", "FAILED_PRECONDITION"):
                    raise
                if asyncio.get_running_loop().time() >= deadline:
                    raise
            await asyncio.sleep(_PAUSE)

    def parse(answer: CurrentVersionSet) -> WorkerDeploymentVersion | None:
        return answer.previous

    return Operation(ask, parse)


def describe_deployment(name: str, rpc_timeout: Duration | None) -> Operation[DeploymentDescription]:
    """Look at a deployment."""
    request = DescribeDeployment(
        deployment_name=check_deployment_name(name), rpc_timeout=optional_seconds(rpc_timeout, "rpc_timeout")
    )

    def parse(answer: DeploymentInfo) -> DeploymentDescription:
        return DeploymentDescription(
            name=answer.name,
            current=answer.current,
            changed_time=time_from(answer.changed_ns),
            versions=tuple(
                DeploymentVersionInfo(
                    version=each.version, status=each.status, create_time=time_from(each.create_time_ns)
                )
                for each in answer.versions
            ),
        )

    return asking(request, parse)
