"""Who serves a task queue: the data, and the one operation that asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from hourglass._contract.service import GetPollers, Poller, Pollers
from hourglass._engine.options import Duration, optional_seconds
from hourglass._engine.versions import WorkerDeploymentVersion
from hourglass.client._session import Operation, Session
from hourglass.client._values import time_from


@dataclass(frozen=True, kw_only=True)
class PollerInfo:
    """Somebody who polls a task queue. `last_seen` is by the engine's clock; a server remembers it for some minutes."""

    identity: str
    last_seen: datetime | None
    deployment_version: WorkerDeploymentVersion | None = None
    """The version of the worker; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class TaskQueueDescription:
    """Who takes workflow tasks and activities from a task queue.

    `served` names all queues that somebody serves. Only the embedded engine knows them; on a server it is empty.
    """

    name: str
    workflow_pollers: tuple[PollerInfo, ...]
    activity_pollers: tuple[PollerInfo, ...]
    served: tuple[str, ...]
    current_version: WorkerDeploymentVersion | None = None
    """The version whose workers take what is not pinned; None: workers without a version do."""


def describe_task_queue(name: str, rpc_timeout: Duration | None) -> Operation[TaskQueueDescription]:
    """Look at a task queue."""
    limit = optional_seconds(rpc_timeout, "rpc_timeout")

    async def ask(session: Session) -> tuple[Pollers, Pollers]:
        tasks = await session.call(GetPollers(task_queue=name, rpc_timeout=limit))
        return tasks, await session.call(GetPollers(task_queue=name, activities=True, rpc_timeout=limit))

    def parse(answers: tuple[Pollers, Pollers]) -> TaskQueueDescription:
        tasks, activities = answers
        return TaskQueueDescription(
            name=name,
            workflow_pollers=tuple(_poller(each) for each in tasks.pollers),
            activity_pollers=tuple(_poller(each) for each in activities.pollers),
            served=tasks.served,
            current_version=tasks.current,
        )

    return Operation(ask, parse)


def _poller(poller: Poller) -> PollerInfo:
    return PollerInfo(
        identity=poller.identity,
        last_seen=time_from(poller.last_seen_ns),
        deployment_version=poller.version,
    )
