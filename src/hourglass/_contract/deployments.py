"""Requests about workers and their server, and the answers: deployments and their versions; namespaces, Nexus endpoints and
search attributes; pollers of task queues. An engine that does not support a request answers with the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Nothing, Request
from hourglass._evaluator.specs import WorkerDeploymentVersion


class CurrentVersionSet(msgspec.Struct, frozen=True):
    """The answer to a change of the current version; `previous` is the former one, None if there was none."""

    previous: WorkerDeploymentVersion | None = None


class SetCurrentVersion(Request[CurrentVersionSet], frozen=True, kw_only=True):
    """Route new runs, and runs that upgrade automatically, to workers of this build; an empty build id: to unversioned ones."""

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    identity: str = ""
    ignore_missing_task_queues: bool = False


class RampingVersionSet(msgspec.Struct, frozen=True):
    """The answer to a change of the ramping version; `previous` is the former one with its percentage, None if there was none."""

    previous: WorkerDeploymentVersion | None = None
    previous_percentage: float = 0.0


class SetRampingVersion(Request[RampingVersionSet], frozen=True, kw_only=True):
    """Route this percentage of the current version's runs to workers of this build; an empty build id or 0 ends the ramp."""

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    percentage: float = 0.0
    identity: str = ""
    ignore_missing_task_queues: bool = False


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that workers have used. `status` is Temporal's name of its state: `CURRENT`, `DRAINED` and others."""

    version: WorkerDeploymentVersion
    status: str = ""
    create_time_ns: int = 0


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its versions, newest first, and which of them are current and ramping."""

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
    """Check that the engine answers and has the namespace of this connection. Sent once, without retries."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class CreateNamespace(Request[Nothing], frozen=True, kw_only=True):
    """Create a namespace, with this retention of closed workflows in seconds."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    retention: float
    description: str = ""


class CreateNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Create a Nexus endpoint for a task queue of a namespace; an empty namespace is the connection's."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    task_queue: str
    namespace: str = ""
    description: str = ""


class NexusEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A Nexus endpoint, by its name; its fields are empty if there is none. A server identifies it by id and version."""

    id: str = ""
    version: int = 0


class FindNexusEndpoint(Request[NexusEndpoint], frozen=True, kw_only=True):
    """Return a Nexus endpoint."""

    effect: ClassVar[Effect] = Effect.READ
    name: str


class DeleteNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Delete a Nexus endpoint."""

    effect: ClassVar[Effect] = Effect.CHANGE
    id: str
    version: int


class SearchAttributeTypes(msgspec.Struct, frozen=True):
    """The search attributes that users have created, with Temporal's names of their types."""

    types: dict[str, str]


class AddSearchAttributes(Request[Nothing], frozen=True, kw_only=True):
    """Create search attributes of these types. One that exists with the same type is kept."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    types: dict[str, str]


class ListSearchAttributes(Request[SearchAttributeTypes], frozen=True, kw_only=True):
    """Return the search attributes that users have created."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class Sighting(msgspec.Struct, frozen=True):
    """The time at which an engine last saw a poll of an identity, by its own clock, in nanoseconds; 0 if never.

    Compare it with other sightings only, because the engine's clock may differ from ours.
    """

    time_ns: int = 0


class LastSeen(Request[Sighting], frozen=True, kw_only=True):
    """Return when the engine last saw this identity poll this queue, for activities or for workflow tasks."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    task_queue: str
    polled_by: str
    activities: bool = False


class Poller(msgspec.Struct, frozen=True):
    """A worker that polls: when the engine last saw a poll, in nanoseconds of its clock, and the worker's version. Only the
    embedded engine reports the rest: the worker's process, whether the engine runs there, and the numbers of workflow tasks
    and activity attempts in progress.
    """

    identity: str
    last_seen_ns: int = 0
    version: WorkerDeploymentVersion | None = None
    process_id: int = 0
    is_owner: bool = False
    in_hand: int = 0


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that works on a file, and its tasks in progress. `is_owner`: the engine runs there. `pid_namespace` is the
    namespace of its process id, 0 if unknown.
    """

    process_id: int
    pid_namespace: int = 0
    identities: tuple[str, ...] = ()
    is_owner: bool = False
    task_queues: tuple[str, ...] = ()
    tasks: int = 0
    attempts: int = 0


class QueueStats(msgspec.Struct, frozen=True):
    """Statistics of a task queue: backlog size, age of its oldest task, and recent add and dispatch rates per second."""

    backlog: int = 0
    age: float = 0.0
    add_rate: float = 0.0
    dispatch_rate: float = 0.0


class Pollers(msgspec.Struct, frozen=True):
    """The workers that poll a queue. `served` names all queues that are polled; empty if the engine does not know. `current` is
    the version that receives unpinned runs; None: unversioned workers do. `stats` are None if not requested, or not reported.
    """

    pollers: tuple[Poller, ...] = ()
    served: tuple[str, ...] = ()
    current: WorkerDeploymentVersion | None = None
    stats: QueueStats | None = None
    ramping: WorkerDeploymentVersion | None = None
    """The version that receives a percentage of these."""


class GetPollers(Request[Pollers], frozen=True, kw_only=True):
    """Return the workers that poll this queue, for activities or for workflow tasks; with `stats` also its statistics."""

    effect: ClassVar[Effect] = Effect.READ
    task_queue: str
    activities: bool = False
    stats: bool = False
