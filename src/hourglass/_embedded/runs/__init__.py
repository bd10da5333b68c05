"""The engine: applies steps to runs, lets time pass, and is ahead of its store.

priority_queue  what waits on one queue: the most urgent first, and fairly
task_queues     what waits to be taken, and which handles could take it
run             a run in memory, and when it must be looked at again
lost_attempts   attempts whose worker ended with its process: kept for a while, or lost
write_behind    what has changed on its way to the store, and what is durable
timers          what happens to runs as time passes
transactions    several runs changed as one, and what runs ask of others
runs            all runs in memory, over a store
starting        starting a workflow: the policies for ids that are taken or were used
deployments     versions of workers, and which worker may take what
dispatch        tasks, queries, attempts and updates between runs and handles
progress        what activities publish, for those who follow their runs
bursts          calls that are debounced: those of one key are one workflow, later
keepers         limits of `hourglass.limits`: slots and turns, without a workflow that keeps them
schedule_search searches the times of large schedules in a thread
schedules       looks at each schedule when its time has come
upkeep          runs that nothing uses now: opening, waking, retention
engine          all of it, put together
"""
