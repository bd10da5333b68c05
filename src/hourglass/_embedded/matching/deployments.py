"""Worker deployments: the versions that workers have had, the current one, and which worker may receive which task.

Must not know: how a task is assigned, activations, requests. The store keeps all deployments under one name, because
they change only with a deployment. While no worker has ever had a version, nothing here is called (`in_use`).

Invariants: a version is known forever once its first worker has joined; a queue belongs to the versions whose workers
have served it; the current version of a queue is the most recently set one among the deployments with this queue. A
ramping version receives a percentage of the tasks of the current one. The workflow id decides which, so that a run that
has moved does not move back.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.store.store import NoteChange
from hourglass._embedded.transitions.run import OpenActivity, Run
from hourglass._embedded.transitions.versioning import external_name, override_of, pinned_version
from hourglass._evaluator.specs import (
    AutoUpgradeVersioningOverride,
    PinnedVersioningOverride,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass.errors import ServiceError, StorageError

NOTE = "deployments"
"""The name of the note in which the store keeps the deployments."""


class Build(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version: when its first worker joined, the queues that its workers have served, and when it last became current or
    began to ramp (0: never).
    """

    created_ns: int
    queues: tuple[str, ...] = ()
    current_ns: int = 0


class Deployment(msgspec.Struct, frozen=True, omit_defaults=True):
    """The builds of a deployment by id, oldest first; the current one (empty: none) and when it was set; the ramping one, and
    its percentage of the runs.
    """

    builds: dict[str, Build] = {}
    current: str = ""
    changed_ns: int = 0
    ramping: str = ""
    percentage: float = 0.0

    def part_of(self, build_id: str) -> str:
        """Return Temporal's name for the state of a build; empty if it is neither current nor ramping."""
        if build_id == self.current:
            return "CURRENT"
        return "RAMPING" if build_id == self.ramping else ""


class Route(NamedTuple):
    """The versions for the unpinned runs of a queue: the current one, and the ramping one with its percentage."""

    current: WorkerDeploymentVersion | None
    ramping: WorkerDeploymentVersion | None = None
    percentage: float = 0.0


def _share(workflow_id: str) -> float:
    """Return a percentage for a workflow: the same in every process, and for all its runs."""
    return int.from_bytes(hashlib.sha256(workflow_id.encode()).digest()[:4]) / 2**32 * 100


_decoder = msgspec.msgpack.Decoder(dict[str, Deployment])


class Deployments:
    """The worker deployments of an engine."""

    def __init__(self, runs: RunTable) -> None:
        self.in_use = False
        self._runs = runs
        self._loaded = False
        self._table: dict[str, Deployment] = {}
        self._routes: dict[str, Route] = {}
        """The routes by queue: a cache that is emptied when a deployment changes."""

    def load(self) -> None:
        """Read the deployments from the store, once. A transaction on a file without an owner reads them only if necessary."""
        if self._loaded:
            return
        data = self._runs.store.note(NOTE)
        try:
            table = _decoder.decode(data) if data else {}
        except msgspec.MsgspecError:
            raise StorageError(
                "the stored worker versions cannot be read: restore a backup", status="DATA_LOSS"
            ) from None
        self._loaded = True
        self._take_up(table)

    def joined(self, poller: QueuePoller) -> None:
        """Record the version of a worker that begins to serve its queue."""
        version, queue = poller.version, poller.task_queue
        if version is None:
            return
        self.load()
        deployment = self._table.get(version.deployment_name, Deployment())
        build = deployment.builds.get(version.build_id) or Build(self._runs.clock.now_ns())
        if queue in build.queues:
            return
        build = msgspec.structs.replace(build, queues=(*build.queues, queue))
        self._keep(
            version.deployment_name,
            msgspec.structs.replace(deployment, builds=deployment.builds | {version.build_id: build}),
        )

    def set_current(self, name: str, build_id: str) -> WorkerDeploymentVersion | None:
        """Make a version current, or none. Return the one before. Raises `ServiceError` for an unknown version."""
        deployment = self._with_build(name, build_id)
        previous = deployment.current
        if previous != build_id:
            self._make_current(name, deployment, build_id)
        return WorkerDeploymentVersion(name, previous) if previous else None

    def _make_current(self, name: str, deployment: Deployment, build_id: str) -> None:
        now = self._runs.clock.now_ns()
        ramps = deployment.ramping if deployment.ramping != build_id else ""  # it receives all tasks now
        changed = Deployment(
            self._used(deployment, build_id, now),
            build_id,
            now,
            ramps,
            deployment.percentage if ramps else 0.0,
        )
        self._keep(name, changed)

    def set_ramping(
        self, name: str, build_id: str, percentage: float
    ) -> tuple[WorkerDeploymentVersion | None, float]:
        """Let a version receive this percentage of the runs of the current one, or none. Return the previous ramping
        version and its percentage.

        Raises `ServiceError` for a version that is unknown or current.
        """
        deployment = self._with_build(name, build_id)
        if build_id and build_id == deployment.current:
            raise ServiceError(
                f"Ramping version '{build_id}' is already current", status="FAILED_PRECONDITION"
            )
        if not 0 <= percentage <= 100:
            raise ServiceError("Percentage must be in range [0, 100]", status="INVALID_ARGUMENT")
        previous = WorkerDeploymentVersion(name, deployment.ramping) if deployment.ramping else None
        if (build_id, percentage if build_id else 0.0) != (deployment.ramping, deployment.percentage):
            now = self._runs.clock.now_ns()
            changed = msgspec.structs.replace(
                deployment,
                builds=self._used(deployment, build_id, now),
                ramping=build_id,
                percentage=percentage if build_id else 0.0,
            )
            self._keep(name, changed)
        return previous, deployment.percentage

    def _used(self, deployment: Deployment, build_id: str, now: int) -> dict[str, Build]:
        if not build_id:
            return deployment.builds
        return deployment.builds | {
            build_id: msgspec.structs.replace(deployment.builds[build_id], current_ns=now)
        }

    def _with_build(self, name: str, build_id: str) -> Deployment:
        deployment = self.find(name)
        if build_id and build_id not in deployment.builds:
            raise ServiceError(
                f"build ID '{build_id}' not found in Worker Deployment '{name}'", status="NOT_FOUND"
            )
        return deployment

    def find(self, name: str) -> Deployment:
        """Return the deployment of this name. Raises `ServiceError` if there is none."""
        self.load()
        deployment = self._table.get(name)
        if deployment is None:
            raise ServiceError(
                f"no Worker Deployment found with name '{name}'; does your Worker Deployment have pollers?",
                status="NOT_FOUND",
            )
        return deployment

    def has_version(self, override: VersioningOverride, task_queue: str) -> bool:
        """Whether some worker of a queue has had the version that an override names; True if it names none."""
        try:
            self.check(override, task_queue)
        except ServiceError:
            return False
        return True

    def check(self, override: VersioningOverride, task_queue: str) -> None:
        """Raise `ServiceError` if an override pins a run to a version that no worker of its queue has had."""
        if isinstance(override, AutoUpgradeVersioningOverride):
            return
        self.load()
        version = (
            override.version if isinstance(override, PinnedVersioningOverride) else override.target_version
        )
        if not self._serves(version, task_queue):
            raise ServiceError(
                f"Pinned version '{external_name(version)}' is not present in task queue "
                f"'{task_queue}' of type 'Workflow'",
                status="FAILED_PRECONDITION",
            )

    def target(self, task_queue: str, workflow_id: str) -> WorkerDeploymentVersion | None:
        """Return the version whose workers receive an unpinned workflow; None: workers without a version receive it."""
        route = self.route(task_queue)
        if route.ramping is not None and _share(workflow_id) < route.percentage:
            return route.ramping
        return route.current

    def route(self, task_queue: str) -> Route:
        """Return the versions for the unpinned runs of a queue."""
        self.load()
        route = self._routes.get(task_queue)
        if route is None:
            route = self._routes[task_queue] = self._find_route(task_queue)
        return route

    def takes_task(self, poller: QueuePoller, run: Run) -> bool:
        """Whether a worker's version may receive a run's next task."""
        return poller.version == (
            pinned_version(run) or self.target(run.started.spec.task_queue, run.started.workflow_id)
        )

    def takes_attempt(self, poller: QueuePoller, run: Run, activity: OpenActivity) -> bool:
        """Whether a worker's version may receive an activity's attempt: if the run is pinned, only its version, where
        it serves the queue.
        """
        queue, pinned = activity.spec.task_queue, pinned_version(run)
        if pinned is not None and self._serves(pinned, queue):
            return poller.version == pinned
        return poller.version == self.target(queue, run.started.workflow_id)

    def elsewhere(self, run: Run) -> WorkerDeploymentVersion | None:
        """Return the version that an unpinned run would move to now, for a run that is pinned by its own code; None if
        the run has declined it.
        """
        if override_of(run) is not None or pinned_version(run) is None:
            return None
        current = self.target(run.started.spec.task_queue, run.started.workflow_id)
        return None if current in (run.version, run.started.declined_version) else current

    def _serves(self, version: WorkerDeploymentVersion, task_queue: str) -> bool:
        deployment = self._table.get(version.deployment_name)
        build = None if deployment is None else deployment.builds.get(version.build_id)
        return build is not None and task_queue in build.queues

    def _find_route(self, task_queue: str) -> Route:
        current: tuple[int, str, str] | None = None
        ramping: tuple[int, str, str] | None = None
        for name, deployment in self._table.items():
            served = [build for build, state in deployment.builds.items() if task_queue in state.queues]
            if deployment.current in served:
                candidate = deployment.changed_ns, name, deployment.current
                current = candidate if current is None else max(current, candidate)
            if deployment.ramping in served:
                candidate = deployment.builds[deployment.ramping].current_ns, name, deployment.ramping
                ramping = candidate if ramping is None else max(ramping, candidate)
        return Route(
            None if current is None else WorkerDeploymentVersion(*current[1:]),
            None if ramping is None else WorkerDeploymentVersion(*ramping[1:]),
            0.0 if ramping is None else self._table[ramping[1]].percentage,
        )

    def _keep(self, name: str, deployment: Deployment) -> None:
        table = self._table | {name: deployment}
        self._runs.keep_schedule(NoteChange(schedule_id=NOTE, data=msgspec.msgpack.encode(table)))
        self._take_up(table)
        self._runs.queues.wake_all()

    def _take_up(self, table: dict[str, Deployment]) -> None:
        self._table = table
        self._routes = {}
        self.in_use = self._runs.queues.versioned = bool(table)
