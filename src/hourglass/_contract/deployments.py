"""Requests about workers and their server, and the answers: deployments and their versions; namespaces, Nexus endpoints
and search attributes; pollers of task queues. An engine that does not support a request rejects it with the status
`UNIMPLEMENTED`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from hourglass._contract.engine_status import QueueStats
from hourglass._contract.service import Effect, Nothing, Request
from hourglass._evaluator.specs import WorkerDeploymentVersion


class CurrentVersionSet(msgspec.Struct, frozen=True):
    """The answer to a change of the current version. `previous` is the former current version, or None if there was none."""

    previous: WorkerDeploymentVersion | None = None


class SetCurrentVersion(Request[CurrentVersionSet], frozen=True, kw_only=True):
    """Route new runs, and runs that upgrade automatically, to workers of this build. An empty build id routes them to
    unversioned workers.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    identity: str = ""
    ignore_missing_task_queues: bool = False


class RampingVersionSet(msgspec.Struct, frozen=True):
    """The answer to a change of the ramping version: the former ramping version with its percentage. `previous` is None
    if there was none.
    """

    previous: WorkerDeploymentVersion | None = None
    previous_percentage: float = 0.0


class SetRampingVersion(Request[RampingVersionSet], frozen=True, kw_only=True):
    """Route this percentage of the current version's runs to workers of this build. An empty build id or a percentage of
    0 ends the ramp.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    percentage: float = 0.0
    identity: str = ""
    ignore_missing_task_queues: bool = False


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that workers have used. `status` is Temporal's name for its state, such as `CURRENT` or `DRAINED`."""

    version: WorkerDeploymentVersion
    status: str = ""
    create_time_ns: int = 0


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its versions, the newest first, and its current and ramping version."""

    name: str
    current: WorkerDeploymentVersion | None = None
    changed_ns: int = 0
    ramping: WorkerDeploymentVersion | None = None
    ramping_percentage: float = 0.0
    versions: tuple[KnownVersion, ...] = ()


class DescribeDeployment(Request[DeploymentInfo], frozen=True, kw_only=True):
    """Return the description of a deployment."""

    effect: ClassVar[Effect] = Effect.READ
    deployment_name: str


class Namespace(msgspec.Struct, frozen=True):
    """A namespace of the engine."""

    name: str


class DescribeNamespace(Request[Namespace], frozen=True, kw_only=True):
    """Check that the engine responds and has the namespace of this connection. Sent once, without retries."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class CreateNamespace(Request[Nothing], frozen=True, kw_only=True):
    """Create a namespace. `retention` is how long closed workflows are kept, in seconds."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    retention: float
    description: str = ""


class CreateNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Create a Nexus endpoint that routes to a task queue of a namespace. If the namespace is empty, the connection's
    namespace is used.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    task_queue: str
    namespace: str = ""
    description: str = ""


class NexusEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The identification of a Nexus endpoint on a server: its id and version. The fields are empty if the endpoint does
    not exist.
    """

    id: str = ""
    version: int = 0


class FindNexusEndpoint(Request[NexusEndpoint], frozen=True, kw_only=True):
    """Find a Nexus endpoint by its name."""

    effect: ClassVar[Effect] = Effect.READ
    name: str


class DeleteNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Delete a Nexus endpoint."""

    effect: ClassVar[Effect] = Effect.CHANGE
    id: str
    version: int


class SearchAttributeTypes(msgspec.Struct, frozen=True):
    """The search attributes that users have created, each with Temporal's name for its type."""

    types: dict[str, str]


class AddSearchAttributes(Request[Nothing], frozen=True, kw_only=True):
    """Create search attributes of these types. An attribute that already exists with the same type is kept."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    types: dict[str, str]


class ListSearchAttributes(Request[SearchAttributeTypes], frozen=True, kw_only=True):
    """Return the search attributes that users have created."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class Sighting(msgspec.Struct, frozen=True):
    """The time at which an engine last saw a poll by an identity, in nanoseconds of the engine's clock. 0 means never.

    Only compare this time with other sightings, because the engine's clock may differ from ours.
    """

    time_ns: int = 0


class LastSeen(Request[Sighting], frozen=True, kw_only=True):
    """Return when the engine last saw this identity poll this task queue, for activity tasks or for workflow tasks."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    task_queue: str
    polled_by: str
    activities: bool = False


class Poller(msgspec.Struct, frozen=True):
    """A worker that polls a task queue: its identity, the time of its last poll in nanoseconds of the engine's clock,
    and its version. Only the embedded engine reports the other fields: the worker's process, whether the engine runs in
    that process (`is_owner`), and the number of tasks and attempts in progress.
    """

    identity: str
    last_seen_ns: int = 0
    version: WorkerDeploymentVersion | None = None
    process_id: int = 0
    is_owner: bool = False
    in_progress: int = 0


class Pollers(msgspec.Struct, frozen=True):
    """The workers that poll a task queue. `served` contains all task queues that have pollers. It is empty if the engine
    does not know them. `current` is the version that receives unpinned runs. None means that unversioned workers receive
    them. `stats` is None if it was not requested or the engine does not report statistics.
    """

    pollers: tuple[Poller, ...] = ()
    served: tuple[str, ...] = ()
    current: WorkerDeploymentVersion | None = None
    stats: QueueStats | None = None
    ramping: WorkerDeploymentVersion | None = None
    """The version that receives a percentage of the unpinned runs."""


class GetPollers(Request[Pollers], frozen=True, kw_only=True):
    """Return the workers that poll this task queue, for activity tasks or for workflow tasks. With `stats`, also return
    the queue's statistics.
    """

    effect: ClassVar[Effect] = Effect.READ
    task_queue: str
    activities: bool = False
    stats: bool = False
