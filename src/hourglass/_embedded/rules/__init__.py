"""What follows from what happened: (run, occurrence) -> `Step`. Pure.

run, relations, limits              a run as data, its relations to others, how large it may grow
transitions, task_transitions, beginnings, recovery, activities, followers, draft       one step of a run
children, command_checks, start_rules       runs that are asked for by other runs, and what is refused
updates, update_answers             what waits for a run, and what it answers
rebuilding, resetting               a run from the beginning of a history; begun anew from one of its tasks
versioning                          which version of worker a run belongs to
priorities                          what is taken first of what waits
wakes, durations                    when a run must be looked at again
workflow_cron, seed                 when the next run begins, its randomness
schedule_record, schedule_times, schedule_overlaps, schedule_transitions    what starts runs again and again
"""
