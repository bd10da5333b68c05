"""What a watchdog asks an engine about ourselves. An engine that cannot tell answers with the status `UNIMPLEMENTED`."""

from __future__ import annotations

import msgspec

from hourglass._bridge.service import Request


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
