"""The part of Core that serves one worker: from histories to activations, and from commands to task completions.

outcomes          results of activities, timers and updates
update_outcomes   updates, and the worker's answers to them
nexus_outcomes    Nexus operations, for replays of histories that a server wrote
child_outcomes    results of children, and of signals and cancellations sent to other workflows
local_activities  local activities: their state machine, timeouts and retries
command_matching  comparison of a worker's commands with the events in the history
cursor            a position in a history, from which activations are made
heartbeats        throttled heartbeats of attempts
local_attempts    the attempts of local activities
cache             the runs that a worker has cached, and the activations that are ready for delivery
task_flow         the processing of a run's workflow task: activations, completion or failure, queries, eviction
handle            a worker's handle: delivers tasks and attempts, and accepts completions
"""
