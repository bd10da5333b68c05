"""The embedded engine: the part of a Temporal server, and of Core, that one process needs.

    history, history_others, history_json, history_others_json, json_parts  what happened: events as data, and as JSON
    run, limits             a run as data, and how large it may grow
    transitions, task_transitions, recovery, activities, followers, draft   pure: (run, occurrence) -> Step
    relations, children, others, command_checks, start_rules    runs and other runs: asked for, carried out, refused
    history_updates, history_updates_json, updates, update_answers, update_outcomes     updates: events, what waits, answers
    rebuilding, resetting   pure: a run from the beginning of a history; a run begun anew from one of its tasks
    store, memory_store     what remembers: the seam, and the one in memory
    ledger, record, wakes, together     thin: applies steps, lets time pass, is ahead of its store
    offers, task_desk, update_desk, attempt_desk, upkeep    who takes what; runs between store and memory
    engine                  all of these put together
    cursor, outcomes, child_outcomes, matching, seed    Core's part, pure: history -> activations, commands -> answer
    cache, heartbeats, handle   thin: what one worker knows and has out
    answering, starting, listing, queries, requests, update_requests, reset_requests, connection
                            what clients ask; answers wait for the store
    clock, bell             time and waking
    ownership, descriptors, meeting     one file, several processes: the lock, forks, where they meet
    frames, wire, serving, remote       what they say, the owner's side, the client's side
    engine_room, interruption, alone, asking, host, patience    an open engine; how a request finds one; who owns
    repeats, unserved       requests whose answer was lost; waits that nobody would end
    standstill              no fork in the middle of SQLite's work
    file_handle, file_connection        a worker's and a client's door to a file

Nothing here imports Temporal's packages. `connect_memory` and `file_connection.connect_file` are the doors.
"""

from __future__ import annotations

from hourglass._embedded.clock import Clock, RealClock, VirtualClock
from hourglass._embedded.connection import EngineConnection, connect_memory

__all__ = ["Clock", "EngineConnection", "RealClock", "VirtualClock", "connect_memory"]
