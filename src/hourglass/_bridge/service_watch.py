"""What an engine is asked about itself and about who polls it: by watchdogs about ourselves, by people about a task queue.

An engine that cannot tell answers with the status `UNIMPLEMENTED`.
"""

from __future__ import annotations

import msgspec

from hourglass._bridge.service import Request
from hourglass._engine.versions import WorkerDeploymentVersion


class Namespace(msgspec.Struct, frozen=True):
    """A namespace that the engine serves."""

    name: str


class DescribeNamespace(Request[Namespace], frozen=True, kw_only=True):
    """Does the engine answer, and does it serve the namespace of this connection? Asked once, and not repeated in vain."""


class Sighting(msgspec.Struct, frozen=True):
    """When an engine last saw somebody poll, by its own clock, in nanoseconds; 0 if it does not know of anybody.

    To be compared with other sightings only: the engine's clock is not ours.
    """

    time_ns: int = 0


class LastSeen(Request[Sighting], frozen=True, kw_only=True):
    """When did the engine last see this identity poll this queue, for activities or for workflow tasks?"""

    task_queue: str
    polled_by: str
    activities: bool = False


class Poller(msgspec.Struct, frozen=True):
    """Somebody who polls, when the engine last saw that, in nanoseconds of its clock, and as which version."""

    identity: str
    last_seen_ns: int = 0
    version: WorkerDeploymentVersion | None = None


class Pollers(msgspec.Struct, frozen=True):
    """Who polls a queue. `served` names all queues that somebody polls, where the engine knows them; else it is empty.
    `current` is the version that takes what is not pinned; None: workers without a version do.
    """

    pollers: tuple[Poller, ...] = ()
    served: tuple[str, ...] = ()
    current: WorkerDeploymentVersion | None = None


class GetPollers(Request[Pollers], frozen=True, kw_only=True):
    """Who polls this queue, for activities or for workflow tasks?"""

    task_queue: str
    activities: bool = False
