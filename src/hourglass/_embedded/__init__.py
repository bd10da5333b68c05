"""The embedded engine: the parts of a Temporal server and of Core that a single process needs.

    clock         real or virtual time, a timer queue, a condition
    transitions   pure functions from a run and an input to a change
    store         persistent data, in memory or in one SQLite file; lists and their filters
    matching      task queues, and the assignment of tasks to handles
    runs          runs in memory, their timers, and the writing of their changes to the store
    schedules     schedules, calendars and cron
    limits        limits of `hourglass.limits` that the engine manages
    engine        the composition of all these parts
    activations   the part of Core that serves one worker: histories to activations, commands to completions
    api           the requests of clients; an answer waits until the changes that it depends on are durable
    multiprocess  several processes on one file: its owner, and how other processes reach the owner

Imports go down this list; `matching`, `runs`, `schedules` and `limits` are one level. Events are defined in
`hourglass._history`. Nothing here imports Temporal's packages. `connect_memory` and
`multiprocess.connection.connect_file` are the entry points.
"""

from __future__ import annotations

from hourglass._embedded.api.connection import EngineConnection, connect_memory
from hourglass._embedded.clock import Clock, RealClock, VirtualClock

__all__ = ["Clock", "EngineConnection", "RealClock", "VirtualClock", "connect_memory"]
