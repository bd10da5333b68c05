"""Runs in memory, ahead of the store.

run            a run in memory, and its deadlines
write_behind   changes on their way to the store, and which of them are durable
outbox         effects that wait until the change that they depend on is durable
lost_attempts  attempts whose worker process ended: kept for a while, or lost
timers         what happens to runs as time passes
due_times      due times of schedules and limits, with one alarm
effects        effects of runs on other runs
transactions   changes to several runs that become durable together
runs           all runs in memory, backed by a store
loading        how a stored run comes into memory
parking        what becomes of a run that cannot be stored
starting       starting a workflow: the policies for ids that are in use or were used
upkeep         opening, waking, eviction and retention of runs that nothing uses
progress       items that activities publish, for followers of their runs
"""
