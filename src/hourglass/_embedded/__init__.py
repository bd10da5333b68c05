"""The embedded engine: the part of a Temporal server, and of Core, that one process needs.

    clock         real or virtual time, a timer queue, a condition
    transitions   pure functions from a run and a cause to a change
    store         persistent data: memory, or one SQLite file; lists and their filters
    matching      task queues, and the assignment of tasks to handles
    runs          runs in memory, their timers, and the way of changes to the store
    schedules     schedules, calendars and cron
    limits        limits of `hourglass.limits`, kept by the engine
    engine        all of these, put together
    activations   Core's part, for one worker: from histories to activations, from commands to completions
    api           the requests of clients; answers wait until what they rest on is durable
    multiprocess  one file, several processes: which one owns it, and how the others reach the owner

Imports go down this list; `matching`, `runs`, `schedules` and `limits` are one level. Events are defined in
`hourglass._history`. Nothing here imports Temporal's packages. `connect_memory` and
`multiprocess.connection.connect_file` are the entry points.
"""

from __future__ import annotations

from hourglass._embedded.api.connection import EngineConnection, connect_memory
from hourglass._embedded.clock import Clock, RealClock, VirtualClock

__all__ = ["Clock", "EngineConnection", "RealClock", "VirtualClock", "connect_memory"]
