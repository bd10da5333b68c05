"""What clients ask about versions of workers: make one current, look at a deployment.

Must not know: how a task finds its worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from hourglass._contract import service as d
from hourglass._contract import service as s
from hourglass._embedded.clients.answering import Answer, is_written
from hourglass._embedded.engine.deployments import Build
from hourglass._embedded.engine.engine import Engine
from hourglass._embedded.rules.versioning import external_name
from hourglass._engine.versions import WorkerDeploymentVersion


async def set_current(engine: Engine, request: d.SetCurrentVersion) -> Answer[d.CurrentVersionSet]:
    """Make a version current."""
    previous = engine.deployments.set_current(request.deployment_name, request.build_id)
    return Answer(d.CurrentVersionSet(previous), engine.runs.newest)


async def describe(engine: Engine, request: d.DescribeDeployment) -> Answer[d.DeploymentInfo]:
    """Look at a deployment."""
    name = request.deployment_name
    found = engine.deployments.find(name)
    await is_written(engine, engine.runs.newest)  # the store counts what is durable
    versions = [
        d.KnownVersion(
            version=WorkerDeploymentVersion(name, build_id),
            status="CURRENT" if build_id == found.current else await _status(engine, name, build_id, build),
            create_time_ns=build.created_ns,
        )
        for build_id, build in found.builds.items()
    ]
    current = WorkerDeploymentVersion(name, found.current) if found.current else None
    info = d.DeploymentInfo(
        name=name, current=current, changed_ns=found.changed_ns, versions=tuple(reversed(versions))
    )
    return Answer(info, engine.runs.newest)


async def _status(engine: Engine, name: str, build_id: str, build: Build) -> str:
    """What is left of a version that is not current: one that never was has nothing to lose."""
    if not build.current_ns:
        return "INACTIVE"
    version = external_name(WorkerDeploymentVersion(name, build_id)).replace("'", "''")
    open_runs = await engine.store.count(
        f"ExecutionStatus = 'Running' AND TemporalWorkerDeploymentVersion = '{version}' "
        "AND TemporalWorkflowVersioningBehavior = 'Pinned'"
    )
    return "DRAINING" if open_runs else "DRAINED"


DEPLOYMENT_HANDLERS: dict[type[s.Request[Any]], Callable[[Engine, Any], Awaitable[Answer[Any]]]] = {
    d.SetCurrentVersion: set_current,
    d.DescribeDeployment: describe,
}
