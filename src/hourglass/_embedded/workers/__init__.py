"""Core's part, for one worker.

cursor, stretches, tellings         history -> activations
matching, outcomes, child_outcomes, update_outcomes     commands -> answer
local_activities, local_rules, local_attempts           activities within the workflow task
cache, cached_run, heartbeats, attempt_hand, handle     what a worker knows and has out
"""
