"""The embedded engine: the part of a Temporal server, and of Core, that one process needs.

  What happened, and what follows from it (pure)
    history_base, history, history_others, history_updates, history_local       events as data
    history_json, history_others_json, history_updates_json, history_local_json, history_versions_json,
    failure_json, json_parts            as JSON
    run, relations, limits              a run as data, its relations to others, how large it may grow
    transitions, task_transitions, beginnings, recovery, activities, followers, draft   (run, occurrence) -> Step
    children, command_checks, start_rules       runs that are asked for by other runs, and what is refused
    updates, update_answers, update_outcomes    what waits for a run, and what it answers
    rebuilding, resetting               a run from the beginning of a history; begun anew from one of its tasks
    versioning                          which version of worker a run belongs to
    workflow_cron, seed                 when the next run begins, its randomness
    schedule_record, schedule_times, schedule_overlaps, schedule_transitions    what starts runs again and again

  The engine (thin: applies steps, lets time pass, is ahead of its store)
    engine                              all of these put together
    ledger, record, alarms, wakes, together, others, awaiting       runs in memory, and what they do to each other
    offers, task_desk, update_desk, attempt_desk, schedule_desk, upkeep     who takes what, and when
    deployments                         which versions of workers there are, which is current
    clock, naps, bell                   time and waking

  Core's part, for one worker
    cursor, stretches, tellings, matching, outcomes, child_outcomes     history -> activations, commands -> answer
    local_activities, local_rules, local_attempts           activities within the workflow task
    cache, cached_run, heartbeats, attempt_hand, activity_tasks, handle   what a worker knows and has out

  What remembers
    store, memory_store                 the seam, and the one in memory
    sqlite_store, database, schema, encoding, stored_form, stored_reads, stored_steps, stored_schedules   the one in a file
    store_thread, coalesce, batch_writer, written_runs, durability, disk_faults, known_ids   how it is written, what may fail
    inherited, standstill, file_copy, backup    forks, and copies of a file in use

  What clients ask
    connection, requests, answering, starting, queries, listing     answers wait for the store
    update_requests, reset_requests, schedule_requests, schedule_listing, watch_requests, deployment_requests
    filter_tokens, filters, filter_sql, attribute_values, durations     the list filter language
    visibility, memory_listing          what can be found by it

  One file, several processes
    ownership, descriptors, meeting     the lock, forks, where they meet
    frames, wire, serving, remote       what they say, the owner's side, the client's side
    engine_room, interruption, alone, asking, host, patience    an open engine; how a request finds one; who owns
    repeats, unserved                   requests whose answer was lost; waits that nobody would end
    file_handle, file_connection        a worker's and a client's door to a file

Nothing here imports Temporal's packages. `connect_memory` and `file_connection.connect_file` are the doors.
"""

from __future__ import annotations

from hourglass._embedded.clock import Clock, RealClock, VirtualClock
from hourglass._embedded.connection import EngineConnection, connect_memory

__all__ = ["Clock", "EngineConnection", "RealClock", "VirtualClock", "connect_memory"]
