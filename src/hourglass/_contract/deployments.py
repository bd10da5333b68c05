"""What people and watchdogs ask about workers and the server that they work for, as requests and answers: deployments and
their versions; namespaces, endpoints of Nexus, search attributes; who polls a task queue. An engine that cannot tell answers
with the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Nothing, Request
from hourglass._evaluator.specs import WorkerDeploymentVersion

# --- versions of workers ------------------------------------------------------------------------------------


class CurrentVersionSet(msgspec.Struct, frozen=True):
    """Another version is current; `previous` was before, None if none was."""

    previous: WorkerDeploymentVersion | None = None


class SetCurrentVersion(Request[CurrentVersionSet], frozen=True, kw_only=True):
    """Send new runs, and those that move on, to workers of this build; an empty one: to workers without a version."""

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    identity: str = ""
    ignore_missing_task_queues: bool = False


class RampingVersionSet(msgspec.Struct, frozen=True):
    """Another version ramps; `previous` did before, with that percentage, None if none did."""

    previous: WorkerDeploymentVersion | None = None
    previous_percentage: float = 0.0


class SetRampingVersion(Request[RampingVersionSet], frozen=True, kw_only=True):
    """Send so many in a hundred of the runs that would go to the current version to workers of this build instead; with an empty
    one, or 0, none.
    """

    effect: ClassVar[Effect] = Effect.CHANGE
    deployment_name: str
    build_id: str
    percentage: float = 0.0
    identity: str = ""
    ignore_missing_task_queues: bool = False


class KnownVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that workers have had. `status` is Temporal's name for its part, such as `CURRENT` or `DRAINED`."""

    version: WorkerDeploymentVersion
    status: str = ""
    create_time_ns: int = 0


class DeploymentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: its versions, newest first, which of them is current, and which ramps."""

    name: str
    current: WorkerDeploymentVersion | None = None
    changed_ns: int = 0
    ramping: WorkerDeploymentVersion | None = None
    ramping_percentage: float = 0.0
    versions: tuple[KnownVersion, ...] = ()


class DescribeDeployment(Request[DeploymentInfo], frozen=True, kw_only=True):
    """Look at a deployment."""

    effect: ClassVar[Effect] = Effect.READ
    deployment_name: str


# --- namespaces, endpoints, search attributes ---------------------------------------------------------------


class Namespace(msgspec.Struct, frozen=True):
    """A namespace that the engine serves."""

    name: str


class DescribeNamespace(Request[Namespace], frozen=True, kw_only=True):
    """Does the engine answer, and does it serve the namespace of this connection? Asked once, and not repeated in vain."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


class CreateNamespace(Request[Nothing], frozen=True, kw_only=True):
    """Make a namespace, whose closed workflows are kept for so many seconds."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    retention: float
    description: str = ""


class CreateNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Make an endpoint of Nexus that leads to a task queue of a namespace; an empty one is the connection's."""

    effect: ClassVar[Effect] = Effect.CHANGE
    name: str
    task_queue: str
    namespace: str = ""
    description: str = ""


class NexusEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of Nexus, by its name; empty fields: there is none. A server knows it by its id, and this version of it."""

    id: str = ""
    version: int = 0


class FindNexusEndpoint(Request[NexusEndpoint], frozen=True, kw_only=True):
    """Look for an endpoint of Nexus."""

    effect: ClassVar[Effect] = Effect.READ
    name: str


class DeleteNexusEndpoint(Request[Nothing], frozen=True, kw_only=True):
    """Remove an endpoint of Nexus."""

    effect: ClassVar[Effect] = Effect.CHANGE
    id: str
    version: int


class SearchAttributeTypes(msgspec.Struct, frozen=True):
    """The search attributes that users have made, with Temporal's names of their types."""

    types: dict[str, str]


class AddSearchAttributes(Request[Nothing], frozen=True, kw_only=True):
    """Make search attributes of these types. One that is there with the same type stays."""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    types: dict[str, str]


class ListSearchAttributes(Request[SearchAttributeTypes], frozen=True, kw_only=True):
    """Which search attributes have users made?"""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT


# --- task queues and who polls them -------------------------------------------------------------------------


class Sighting(msgspec.Struct, frozen=True):
    """When an engine last saw a poll of an identity, by its own clock, in nanoseconds; 0 if it knows of none.

    To be compared with other sightings only: the engine's clock is not ours.
    """

    time_ns: int = 0


class LastSeen(Request[Sighting], frozen=True, kw_only=True):
    """When did the engine last see this identity poll this queue, for activities or for workflow tasks?"""

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    task_queue: str
    polled_by: str
    activities: bool = False


class Poller(msgspec.Struct, frozen=True):
    """A worker that polls, when the engine last saw that, in nanoseconds of its clock, and as which version. The rest only
    the embedded engine knows: the worker's process, whether the engine runs there, and how many workflow tasks and attempts
    of activities it has in hand.
    """

    identity: str
    last_seen_ns: int = 0
    version: WorkerDeploymentVersion | None = None
    process_id: int = 0
    is_owner: bool = False
    in_hand: int = 0


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that works on a file, and what it has in progress. `is_owner`: the engine runs there. `pid_namespace`: that of
    its id, 0 if unknown.
    """

    process_id: int
    pid_namespace: int = 0
    identities: tuple[str, ...] = ()
    is_owner: bool = False
    task_queues: tuple[str, ...] = ()
    tasks: int = 0
    attempts: int = 0


class QueueStats(msgspec.Struct, frozen=True):
    """What waits on a queue, since when at most, and how much came and was taken a second of late."""

    backlog: int = 0
    age: float = 0.0
    add_rate: float = 0.0
    dispatch_rate: float = 0.0


class Pollers(msgspec.Struct, frozen=True):
    """The workers that poll a queue. `served` names all queues that are polled; empty where the engine does not know.
    `current` is the version that takes what is not pinned; None: workers without a version do. `stats` are None where they
    were not asked for, or the server does not tell.
    """

    pollers: tuple[Poller, ...] = ()
    served: tuple[str, ...] = ()
    current: WorkerDeploymentVersion | None = None
    stats: QueueStats | None = None
    ramping: WorkerDeploymentVersion | None = None
    """The version that takes a part of that."""


class GetPollers(Request[Pollers], frozen=True, kw_only=True):
    """Which workers poll this queue, for activities or for workflow tasks? With `stats`: and what waits on it?"""

    effect: ClassVar[Effect] = Effect.READ
    task_queue: str
    activities: bool = False
    stats: bool = False
