"""The embedded engine: the part of a Temporal server, and of Core, that one process needs.

    timing      time and waking
    events      what happened: history events as data, JSON and bytes (pure)
    rules       what follows from it: (run, occurrence) -> step (pure)
    stores      what remembers runs: memory, or one SQLite file; lists and their filters
    running     the engine: applies steps, lets time pass, is ahead of its store
    workers     Core's part, for one worker: histories as activations, commands as answers
    clients     what clients ask; answers wait for the store
    processes   one file, several processes: who owns it, and how the others reach it

Each imports only those above it. Nothing here imports Temporal's packages. `connect_memory` and
`processes.file_connection.connect_file` are the doors.
"""

from __future__ import annotations

from hourglass._embedded.clients.connection import EngineConnection, connect_memory
from hourglass._embedded.clock import Clock, RealClock, VirtualClock

__all__ = ["Clock", "EngineConnection", "RealClock", "VirtualClock", "connect_memory"]
