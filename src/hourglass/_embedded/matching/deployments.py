"""Worker deployments: the versions that workers have had, the current version, and the rules for which worker may
receive which task.

Must not know: how a task is assigned, activations, requests. The store keeps all deployments in one record, because they
change rarely: only when a version is deployed. Until the first worker with a version joins, this module is not used
(`in_use`).

Invariants: a version remains known once its first worker has joined. A queue belongs to the versions whose workers have
served it. The current version of a queue is the most recently set one among the deployments with this queue. A ramping
version receives a percentage of the workflows of the current version. The workflow id decides which workflows these are,
so that a run that has moved to the ramping version does not move back.
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
    """A version: the time at which its first worker joined, the queues that its workers have served, and the time at
    which the version last became current or began to ramp (0: never).
    """

    created_ns: int
    queues: tuple[str, ...] = ()
    current_ns: int = 0


class Deployment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A deployment: its builds by id, the oldest first; the id of the current build ("": none) and the time at which it
    became current; the id of the ramping build, and the percentage of runs that it receives.
    """

    builds: dict[str, Build] = {}
    current: str = ""
    changed_ns: int = 0
    ramping: str = ""
    percentage: float = 0.0

    def part_of(self, build_id: str) -> str:
        """Return Temporal's name for the state of a build: "CURRENT", "RAMPING", or "" for any other."""
        if build_id == self.current:
            return "CURRENT"
        return "RAMPING" if build_id == self.ramping else ""


class Route(NamedTuple):
    """The versions that receive the unpinned runs of a queue: the current version, and the ramping version with its
    percentage.
    """

    current: WorkerDeploymentVersion | None
    ramping: WorkerDeploymentVersion | None = None
    percentage: float = 0.0


def _share(workflow_id: str) -> float:
    """Return a number from 0 to 100 for a workflow id. The number is the same in every process and for all runs of the
    workflow.
    """
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
        """Read the deployments from the store, unless they are already loaded."""
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
        """Record the version of a worker that has started to serve its queue."""
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
        """Set the current version of a deployment, or clear it if `build_id` is empty. Return the previous current
        version.

        Raise `ServiceError` for an unknown version.
        """
        deployment = self._with_build(name, build_id)
        previous = deployment.current
        if previous != build_id:
            self._make_current(name, deployment, build_id)
        return WorkerDeploymentVersion(name, previous) if previous else None

    def _make_current(self, name: str, deployment: Deployment, build_id: str) -> None:
        now = self._runs.clock.now_ns()
        ramps = deployment.ramping if deployment.ramping != build_id else ""  # it receives all runs now
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
        """Set the ramping version and the percentage of runs that it receives, or clear it if `build_id` is empty.
        Return the previous ramping version and its percentage.

        Raise `ServiceError` if the version is unknown or is already the current one.
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
        """Return the deployment with this name. Raise `ServiceError` if there is none."""
        self.load()
        deployment = self._table.get(name)
        if deployment is None:
            raise ServiceError(
                f"no Worker Deployment found with name '{name}'; does your Worker Deployment have pollers?",
                status="NOT_FOUND",
            )
        return deployment

    def has_version(self, override: VersioningOverride, task_queue: str) -> bool:
        """Whether a worker of the queue has ever had the version that an override names. True if the override names no
        version.
        """
        try:
            self.check(override, task_queue)
        except ServiceError:
            return False
        return True

    def check(self, override: VersioningOverride, task_queue: str) -> None:
        """Raise `ServiceError` if an override pins a run to a version that no worker of the queue has ever had."""
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
        """Return the version whose workers receive an unpinned workflow. None means workers without a version."""
        route = self.route(task_queue)
        if route.ramping is not None and _share(workflow_id) < route.percentage:
            return route.ramping
        return route.current

    def route(self, task_queue: str) -> Route:
        """Return the versions that receive the unpinned runs of a queue."""
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
        """Whether a worker's version may receive an activity attempt. If the run is pinned to a version that serves the
        queue, only that version may receive the attempt.
        """
        queue, pinned = activity.spec.task_queue, pinned_version(run)
        if pinned is not None and self._serves(pinned, queue):
            return poller.version == pinned
        return poller.version == self.target(queue, run.started.workflow_id)

    def unpinned_target(self, run: Run) -> WorkerDeploymentVersion | None:
        """Return the version that a run would move to if its own code did not pin it. Return None if the run would stay,
        or if it has declined that version.
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
