"""The embedded engine: the part of a Temporal server, and of Core, that one process needs.

    clock     time as a part: real or virtual, a timer queue; a condition
    rules     what follows from what happened: (run, occurrence, now) -> step (pure)
    store     what remembers runs: memory, or one SQLite file; lists and their filters
    engine    applies steps, lets time pass, is ahead of its store
    workers   Core's part, for one worker: histories as activations, commands as answers
    clients   what clients ask; answers and refusals wait for the store
    sharing   one file, several processes: which one owns it, and how the others reach it

Each imports only those above it. What happened is `hourglass._history`'s. Nothing here imports Temporal's packages.
`connect_memory` and `sharing.connection.connect_file` are the doors.
"""

from __future__ import annotations

from hourglass._embedded.api.connection import EngineConnection, connect_memory
from hourglass._embedded.clock import Clock, RealClock, VirtualClock

__all__ = ["Clock", "EngineConnection", "RealClock", "VirtualClock", "connect_memory"]
