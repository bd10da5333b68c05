"""The embedded engine: the part of a Temporal server, and of Core, that one process needs. In memory so far.

    history, history_json   what happened to a run: Temporal's events as data, and as JSON
    run                     a run as data
    transitions, task_transitions, activities, followers, draft     pure: (run, occurrence) -> Step
    engine, offers          thin: stores steps, lets time pass, offers tasks
    cursor, outcomes, matching, seed    Core's part, pure: history -> activations, commands -> answer
    cache, handle           thin: what one worker knows and has out
    starting, listing, queries, requests, connection    what clients ask
    clock, bell             time and waking

Nothing here imports Temporal's packages. `connect_memory` is the door.
"""

from __future__ import annotations

from hourglass._embedded.clock import Clock, RealClock, VirtualClock
from hourglass._embedded.connection import MemoryConnection, connect_memory

__all__ = ["Clock", "MemoryConnection", "RealClock", "VirtualClock", "connect_memory"]
