"""Pure transitions: from a run, a cause and a time to a change. The rules are those of a Temporal server.

run             a run as the engine stores it: frozen data derived from its history, its links to other runs, its priority
size_limits     limits on sizes and counts, with Temporal's messages
change_builder  the builder of a change: writes events, updates the run
task_starts     the start of a workflow task and of an attempt
problems        the search attribute that reports failing workflow tasks and activities
versioning      the worker version of a run
activities      decisions about one activity: deadlines, retries, outcomes
standalone      an activity without a workflow, as a run of its own kind
children        relations between runs: children, signals, next runs (continue-as-new, retry, cron)
updates         the updates of one run
command_checks  the commands of a worker that are rejected, and the reasons
tasks           a workflow task: start, completion, failure, timeout
transitions     requests from outside, timers, and recovery after a crash
resetting       a new run that resumes at an earlier task of another run
"""
