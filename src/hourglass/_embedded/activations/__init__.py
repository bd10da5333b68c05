"""Core's part, for one worker: from histories to activations, and from commands to completions of tasks.

outcomes          results of activities, timers and updates
update_outcomes   updates, and the worker's answers to them
nexus_outcomes    Nexus operations, in replays of histories that a server wrote
child_outcomes    results of children, and of signals and cancels sent to other workflows
local_activities  local activities: their state machine, limits and retries
command_matching  a worker's commands compared with the events in history
cursor            walks a history and turns it into activations
heartbeats        heartbeats of attempts, throttled
local_attempts    the attempts of local activities
cache             the runs that a worker has cached, and the activations that are ready for it
task_flow         one run in a worker, and the way of its task: activations, answer or failure, queries, eviction
handle            a worker's handle: delivers tasks and attempts, and accepts completions
"""
