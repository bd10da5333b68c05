"""The supervision tree of a worker process, and the parts that its processes run.

plan          the checked options of a worker
application   everything that serves one connection, and the state that outlives the tree's processes
subsystem     the supervision tree, as one readable expression
processes     the bodies of the tree's processes
services      the parts that serve one task queue and outlive its Worker
dispatch      one job for each item from an engine
watchdog      the check for states that should be impossible, and their repair
sightings     the check whether the engine sees our polls
reachability  the check whether the engine answers
parked_watch  the number of parked runs, according to the engine
worker_view   a worker's state and statistics; Ctrl-C and SIGTERM
status        the worker's state over HTTP (`/live`, `/ready`, `/status`)
worker_metrics  the metrics of a worker
"""
