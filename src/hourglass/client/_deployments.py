"""Who serves a task queue; which versions of workers there are, and which is current. Data, and what asks for it."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

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
    QueueStats,
    SetCurrentVersion,
    SetRampingVersion,
)
from hourglass._contract.service import Request
from hourglass._evaluator.options import Duration, check_text, named_values, seconds
from hourglass._evaluator.specs import WorkerDeploymentVersion, check_deployment_name, check_version
from hourglass.client._session import ClientOperation, ClientSession, asking, nothing
from hourglass.client._values import time_from
from hourglass.errors import ServiceError, UsageError

A = TypeVar("A")

# --- task queues ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PollerInfo:
    """A worker that polls a task queue. `last_seen` is by the engine's clock; a server keeps it for some minutes."""

    identity: str
    last_seen: datetime | None
    deployment_version: WorkerDeploymentVersion | None = None
    """The version of the worker; None where it has none."""
    process_id: int = 0
    """The worker's process; 0 where the engine, a server, does not know it."""
    is_owner: bool = False
    """Whether the engine runs in that process: it owns the file."""
    in_hand: int = 0
    """How many workflow tasks, or attempts of activities, the worker has now, where the engine knows it."""


@dataclass(frozen=True, kw_only=True)
class TaskQueueStats:
    """How much of one kind waits on a task queue for a worker, and how much comes and goes. A server's figures are approximate.

    A backlog that grows, or an age of minutes, says that there are too few workers; one task that is old while workers poll, that
    none of them may take it (a version, a fairness rule).
    """

    backlog: int
    """How many tasks wait."""

    age: timedelta
    """How long the oldest of them has waited; zero where none waits."""

    add_rate: float
    """How many came a second, over the last half minute."""

    dispatch_rate: float
    """How many workers took a second, over the last half minute."""


@dataclass(frozen=True, kw_only=True)
class TaskQueueDescription:
    """Who takes workflow tasks and activities from a task queue, and how much waits there.

    `served` names all queues that a worker serves. Only the embedded engine knows them; on a server it is empty.
    """

    name: str
    workflow_pollers: tuple[PollerInfo, ...]
    activity_pollers: tuple[PollerInfo, ...]
    served: tuple[str, ...]
    current_version: WorkerDeploymentVersion | None = None
    """The version whose workers take what is not pinned; None: workers without a version do."""

    ramping_version: WorkerDeploymentVersion | None = None
    """The version whose workers take a part of that; None: none does."""

    workflow_stats: TaskQueueStats | None = None
    """How many workflow tasks wait; None where the server does not tell. On a file that no worker has open what is stored is
    counted, and the rates are 0.
    """

    activity_stats: TaskQueueStats | None = None
    """The same for activities."""


def create_namespace(name: str, retention: Duration, description: str) -> ClientOperation[None]:
    """Make a namespace."""
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
    """Make an endpoint of Nexus."""
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
    """Remove an endpoint of Nexus."""
    find = FindNexusEndpoint(name=check_text(name, "the name of an endpoint"))

    async def ask(session: ClientSession) -> None:
        found = await session.call(find)
        if not found.id:
            raise ServiceError(f"there is no endpoint {name!r}", status="NOT_FOUND")
        await session.call(DeleteNexusEndpoint(id=found.id, version=found.version))

    return ClientOperation(ask, nothing)


ATTRIBUTE_TYPES = ("Keyword", "KeywordList", "Text", "Int", "Double", "Bool", "Datetime")


def add_search_attributes(types: Mapping[str, str]) -> ClientOperation[None]:
    """Make search attributes of these types, of which those that are there stay."""
    for name, kind in named_values(types, "search attributes").items():
        if kind not in ATTRIBUTE_TYPES:
            raise UsageError(
                f"search attribute {name} must be one of {', '.join(ATTRIBUTE_TYPES)}, not {kind!r:.40}"
            )

    async def ask(session: ClientSession) -> None:
        known = (await session.call(ListSearchAttributes())).types
        for name, kind in types.items():
            if known.get(name, kind) != kind:  # a server would leave it, without a word
                raise ServiceError(
                    f"search attribute {name} is there already, and is of type {known[name]}",
                    status="ALREADY_EXISTS",
                )
        new = {name: kind for name, kind in types.items() if name not in known}
        if new:
            await session.call(AddSearchAttributes(types=new))

    return ClientOperation(ask, nothing)


def list_search_attributes() -> ClientOperation[dict[str, str]]:
    """The search attributes that users have made."""
    return asking(ListSearchAttributes(), lambda answer: answer.types)


def describe_task_queue(name: str) -> ClientOperation[TaskQueueDescription]:
    """Look at a task queue."""

    async def ask(session: ClientSession) -> tuple[Pollers, Pollers]:
        request = GetPollers(task_queue=name, stats=True)
        return await session.call(request), await session.call(replace(request, activities=True))

    def parse(answers: tuple[Pollers, Pollers]) -> TaskQueueDescription:
        tasks, activities = answers
        return TaskQueueDescription(
            name=name,
            workflow_pollers=tuple(_poller(each) for each in tasks.pollers),
            activity_pollers=tuple(_poller(each) for each in activities.pollers),
            served=tasks.served,
            current_version=tasks.current,
            ramping_version=tasks.ramping,
            workflow_stats=_stats(tasks.stats),
            activity_stats=_stats(activities.stats),
        )

    return ClientOperation(ask, parse)


def _poller(poller: Poller) -> PollerInfo:
    return PollerInfo(
        identity=poller.identity,
        last_seen=time_from(poller.last_seen_ns),
        deployment_version=poller.version,
        process_id=poller.process_id,
        is_owner=poller.is_owner,
        in_hand=poller.in_hand,
    )


def _stats(told: QueueStats | None) -> TaskQueueStats | None:
    if told is None:
        return None
    return TaskQueueStats(
        backlog=told.backlog,
        age=timedelta(seconds=told.age),
        add_rate=told.add_rate,
        dispatch_rate=told.dispatch_rate,
    )


# --- deployments ----------------------------------------------------------------------------------


_PAUSE = 0.1


@dataclass(frozen=True, kw_only=True)
class DeploymentVersionInfo:
    """A version that workers have had. `status` is Temporal's word for its part: `CURRENT`, `RAMPING`, `INACTIVE`, `DRAINING`
    (pinned runs are open) or `DRAINED`.
    """

    version: WorkerDeploymentVersion
    status: str
    create_time: datetime | None


@dataclass(frozen=True, kw_only=True)
class DeploymentDescription:
    """A deployment: its versions, newest first, and the one that is current; None: workers without a version are. `ramping` takes
    so many in a hundred of the runs that would go there.
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
    """Make a version current; gives the one that was. A version the engine does not know yet may be on its way."""
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

    return ClientOperation(
        lambda session: _when_known(session, request, limit), lambda answer: answer.previous
    )


def set_ramping_version(
    session: ClientSession,
    deployment: str,
    build_id: str | None,
    percentage: float,
    *,
    wait: Duration,
    ignore_missing_task_queues: bool,
) -> ClientOperation[WorkerDeploymentVersion | None]:
    """Let a version ramp; gives the one that did. A version the engine does not know yet may be on its way."""
    check_deployment_name(deployment)
    if build_id is not None:
        check_version(WorkerDeploymentVersion(deployment, build_id), "the version")
    if not isinstance(percentage, (int, float)) or isinstance(percentage, bool) or not 0 <= percentage <= 100:
        raise UsageError(f"percentage must be a number from 0 to 100, not {percentage!r:.40}")
    if build_id is None and percentage:
        raise UsageError("with no build there is nothing that could ramp: leave the percentage out")
    limit = seconds(wait, "wait")
    request = SetRampingVersion(
        deployment_name=deployment,
        build_id=build_id or "",
        percentage=float(percentage),
        identity=session.identity,
        ignore_missing_task_queues=ignore_missing_task_queues,
    )
    return ClientOperation(
        lambda session: _when_known(session, request, limit), lambda answer: answer.previous
    )


async def _when_known(session: ClientSession, request: Request[A], limit: float) -> A:
    """The answer, once the engine knows the version: a server hears of it a moment after its first worker has begun to poll."""
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
    """Look at a deployment."""
    request = DescribeDeployment(deployment_name=check_deployment_name(name))

    def parse(answer: DeploymentInfo) -> DeploymentDescription:
        return DeploymentDescription(
            name=answer.name,
            current=answer.current,
            changed_time=time_from(answer.changed_ns),
            ramping=answer.ramping,
            ramping_percentage=answer.ramping_percentage,
            versions=tuple(
                DeploymentVersionInfo(
                    version=each.version, status=each.status, create_time=time_from(each.create_time_ns)
                )
                for each in answer.versions
            ),
        )

    return asking(request, parse)
