"""Task queues, their workers, and worker versions: descriptions, and operations that return them."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec.structs import replace

from hourglass._contract.deployments import (
    AddSearchAttributes,
    CreateNamespace,
    CreateNexusEndpoint,
    DeleteNexusEndpoint,
    DeploymentInfo,
    DescribeDeployment,
    FindNexusEndpoint,
    GetPollers,
    ListSearchAttributes,
    Poller,
    Pollers,
    SetCurrentVersion,
    SetRampingVersion,
)
from hourglass._contract.engine_status import QueueStats
from hourglass._contract.service import Request
from hourglass._evaluator.options import Duration, check_text, named_values, seconds
from hourglass._evaluator.specs import WorkerDeploymentVersion, check_deployment_name, check_version
from hourglass.client._session import ClientOperation, ClientSession, asking, nothing
from hourglass.client._values import time_from, values_of
from hourglass.errors import ServiceError, UsageError

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class PollerInfo:
    """A worker that polls a task queue. `last_seen` is measured by the engine's clock. A server remembers a worker for some
    minutes.
    """

    identity: str
    last_seen: datetime | None
    deployment_version: WorkerDeploymentVersion | None = None
    """The version of the worker; None if it is unversioned."""
    process_id: int = 0
    """The id of the worker's process; 0 on a server."""
    is_owner: bool = False
    """Whether the engine runs in the worker's process, as the owner of the file."""
    in_progress: int = 0
    """The number of workflow tasks or activity attempts in progress; 0 on a server."""


@dataclass(frozen=True, kw_only=True)
class TaskQueueStats:
    """Statistics of one kind of task in a task queue. A server's figures are approximate.

    A growing backlog, or an age of several minutes, means that there are too few workers. A single old task while workers
    poll means that no worker can receive it, because of a version or a fairness rule.
    """

    backlog: int
    """The number of tasks in the backlog."""

    backlog_age: timedelta
    """The age of the oldest task in the backlog; zero if the backlog is empty."""

    add_rate: float
    """Tasks added per second during the last half minute."""

    dispatch_rate: float
    """Tasks dispatched per second during the last half minute."""


@dataclass(frozen=True, kw_only=True)
class TaskQueueDescription:
    """The workers of a task queue, for workflow tasks and for activities, and its statistics.

    `served` contains the names of all task queues that workers serve. Only the embedded engine reports it; on a server it is
    empty.
    """

    name: str
    workflow_pollers: tuple[PollerInfo, ...]
    activity_pollers: tuple[PollerInfo, ...]
    served: tuple[str, ...]
    current_version: WorkerDeploymentVersion | None = None
    """The version whose workers receive unpinned runs; None if unversioned workers receive them."""

    ramping_version: WorkerDeploymentVersion | None = None
    """The version whose workers receive a percentage of the unpinned runs; None if there is no ramp."""

    workflow_stats: TaskQueueStats | None = None
    """The statistics of workflow tasks; None if the server does not report them. On a file without a worker, the stored
    tasks are counted and the rates are 0.
    """

    activity_stats: TaskQueueStats | None = None
    """The statistics of activity tasks; None if the server does not report them."""


def create_namespace(name: str, retention: Duration, description: str) -> ClientOperation[None]:
    """Create a namespace."""
    if not isinstance(name, str) or not name.strip():
        raise UsageError("the name of a namespace must be a non-empty str")
    request = CreateNamespace(
        name=check_text(name, "the name of a namespace"),
        retention=seconds(retention, "retention"),
        description=check_text(description, "description"),
    )
    return asking(request, nothing)


def create_nexus_endpoint(
    name: str, task_queue: str, namespace: str | None, description: str
) -> ClientOperation[None]:
    """Create a Nexus endpoint."""
    for text, what in ((name, "the name of an endpoint"), (task_queue, "task_queue")):
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"{what} must be a non-empty str")
    request = CreateNexusEndpoint(
        name=check_text(name, "the name of an endpoint"),
        task_queue=check_text(task_queue, "task_queue"),
        namespace=check_text(namespace or "", "namespace"),
        description=check_text(description, "description"),
    )
    return asking(request, nothing)


def delete_nexus_endpoint(name: str) -> ClientOperation[None]:
    """Delete a Nexus endpoint."""
    find = FindNexusEndpoint(name=check_text(name, "the name of an endpoint"))

    async def ask(session: ClientSession) -> None:
        endpoint = await session.call(find)
        if not endpoint.id:
            raise ServiceError(f"the Nexus endpoint {name!r} does not exist", status="NOT_FOUND")
        await session.call(DeleteNexusEndpoint(id=endpoint.id, version=endpoint.version))

    return ClientOperation(ask, nothing)


ATTRIBUTE_TYPES = ("Keyword", "KeywordList", "Text", "Int", "Double", "Bool", "Datetime")


def add_search_attributes(types: Mapping[str, str]) -> ClientOperation[None]:
    """Create search attributes of these types. Keep existing ones."""
    for name, kind in named_values(types, "search attributes").items():
        if kind not in ATTRIBUTE_TYPES:
            raise UsageError(
                f"search attribute {name} must be one of {', '.join(ATTRIBUTE_TYPES)}, not {kind!r:.40}"
            )

    async def ask(session: ClientSession) -> None:
        existing = (await session.call(ListSearchAttributes())).types
        for name, kind in types.items():
            if existing.get(name, kind) != kind:  # a server would silently ignore the new type
                raise ServiceError(
                    f"search attribute {name} already exists, with type {existing[name]}",
                    status="ALREADY_EXISTS",
                )
        new = {name: kind for name, kind in types.items() if name not in existing}
        if new:
            await session.call(AddSearchAttributes(types=new))

    return ClientOperation(ask, nothing)


def list_search_attributes() -> ClientOperation[dict[str, str]]:
    """Return the custom search attributes."""
    return asking(ListSearchAttributes(), lambda answer: answer.types)


def describe_task_queue(name: str) -> ClientOperation[TaskQueueDescription]:
    """Return the description of a task queue."""

    async def ask(session: ClientSession) -> tuple[Pollers, Pollers]:
        request = GetPollers(task_queue=name, stats=True)
        return await session.call(request), await session.call(replace(request, activities=True))

    def parse(answers: tuple[Pollers, Pollers]) -> TaskQueueDescription:
        tasks, activities = answers
        return TaskQueueDescription(
            name=name,
            workflow_pollers=tuple(_poller(poller) for poller in tasks.pollers),
            activity_pollers=tuple(_poller(poller) for poller in activities.pollers),
            served=tasks.served,
            current_version=tasks.current,
            ramping_version=tasks.ramping,
            workflow_stats=_stats(tasks.stats),
            activity_stats=_stats(activities.stats),
        )

    return ClientOperation(ask, parse)


def _poller(poller: Poller) -> PollerInfo:
    return PollerInfo(**values_of(PollerInfo, poller, deployment_version=poller.version))


def _stats(stats: QueueStats | None) -> TaskQueueStats | None:
    if stats is None:
        return None
    return TaskQueueStats(
        **values_of(TaskQueueStats, stats, backlog_age=timedelta(seconds=stats.backlog_age))
    )


_PAUSE = 0.1


@dataclass(frozen=True, kw_only=True)
class DeploymentVersionInfo:
    """A version that workers have used. `status` is Temporal's name for its state: `CURRENT`, `RAMPING`, `INACTIVE`,
    `DRAINING` (open runs are pinned to the version) or `DRAINED`.
    """

    version: WorkerDeploymentVersion
    status: str
    create_time: datetime | None


@dataclass(frozen=True, kw_only=True)
class DeploymentDescription:
    """A deployment: its versions, newest first, and the current version, or None if unversioned workers are current.
    `ramping` is the version that receives a percentage of the current version's runs.
    """

    name: str
    current: WorkerDeploymentVersion | None
    changed_time: datetime | None
    versions: tuple[DeploymentVersionInfo, ...]
    ramping: WorkerDeploymentVersion | None = None
    ramping_percentage: float = 0.0


def set_current_version(
    session: ClientSession,
    deployment: str,
    build_id: str | None,
    *,
    wait: Duration,
    ignore_missing_task_queues: bool,
) -> ClientOperation[WorkerDeploymentVersion | None]:
    """Make a version current and return the previous one. If the engine does not know the version yet, wait for a worker to
    report it.
    """
    request = SetCurrentVersion(
        deployment_name=deployment,
        build_id=build_id or "",
        identity=session.identity,
        ignore_missing_task_queues=ignore_missing_task_queues,
    )
    return _route(deployment, build_id, request, wait)


def set_ramping_version(
    session: ClientSession,
    deployment: str,
    build_id: str | None,
    percentage: float,
    *,
    wait: Duration,
    ignore_missing_task_queues: bool,
) -> ClientOperation[WorkerDeploymentVersion | None]:
    """Set the ramping version and return the previous one. If the engine does not know the version yet, wait for a worker
    to report it.
    """
    if not isinstance(percentage, (int, float)) or isinstance(percentage, bool) or not 0 <= percentage <= 100:
        raise UsageError(f"percentage must be a number from 0 to 100, not {percentage!r:.40}")
    if build_id is None and percentage:
        raise UsageError("a percentage needs a build id: pass build_id, or omit percentage")
    request = SetRampingVersion(
        deployment_name=deployment,
        build_id=build_id or "",
        percentage=float(percentage),
        identity=session.identity,
        ignore_missing_task_queues=ignore_missing_task_queues,
    )
    return _route(deployment, build_id, request, wait)


def _route(
    deployment: str, build_id: str | None, request: Request[Any], wait: Duration
) -> ClientOperation[WorkerDeploymentVersion | None]:
    """Check the version of a request that routes runs, and return the operation that sends the request."""
    check_deployment_name(deployment)
    if build_id is not None:
        check_version(WorkerDeploymentVersion(deployment, build_id), "the version")
    limit = seconds(wait, "wait")
    return ClientOperation(
        lambda session: _when_known(session, request, limit), lambda answer: answer.previous
    )


async def _when_known(session: ClientSession, request: Request[A], limit: float) -> A:
    """Send the request until the engine knows the version, and return its answer. A server registers a version a moment
    after the version's first worker has begun to poll.
    """
    deadline = asyncio.get_running_loop().time() + limit
    while True:
        try:
            return await session.call(request)
        except ServiceError as error:
            if error.status not in ("NOT_FOUND", "FAILED_PRECONDITION"):
                raise
            if asyncio.get_running_loop().time() >= deadline or "already current" in str(error):
                raise
        await sleep(_PAUSE)


def describe_deployment(name: str) -> ClientOperation[DeploymentDescription]:
    """Return the description of a deployment."""
    request = DescribeDeployment(deployment_name=check_deployment_name(name))

    def parse(answer: DeploymentInfo) -> DeploymentDescription:
        versions = tuple(
            DeploymentVersionInfo(**values_of(DeploymentVersionInfo, version)) for version in answer.versions
        )
        changed = time_from(answer.changed_ns)
        return DeploymentDescription(
            **values_of(DeploymentDescription, answer, changed_time=changed, versions=versions)
        )

    return asking(request, parse)
