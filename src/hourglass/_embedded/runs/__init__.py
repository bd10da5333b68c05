"""Runs in memory, ahead of the store.

run            a run in memory, and its deadlines
write_behind   changes that have not been written yet, and which changes are durable
outbox         effects that are held back until the changes that they depend on are durable
lost_attempts  attempts of workers from before a takeover: reserved for a while, or lost
timers         the transitions of runs at their deadlines
due_times      due times of schedules and limits, with a single alarm
effects        effects of runs on other runs
transactions   changes to several runs that become durable together
runs           all runs in memory, backed by a store
loading        loading a stored run into memory
parking        parking a run that cannot be stored
starting       starting a workflow: the policies for ids that are in use or were used
upkeep         opening, waking, eviction and retention of unused runs
progress       items that activities publish, for followers of their runs
"""
