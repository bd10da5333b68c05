"""The diagnosis behind `hourglass why`: why a run is in its current state, and what to do.

Pure, except for `asking` and `problems`, which query a client. Used by the command line and the web UI.

diagnosis       the result of `hourglass why`, as data
advice          suggested actions for each cause
reasons_tasks   why a run's workflow task is not processed
reasons_closed  why a closed run ended as it did
reasons         why a run is in its current state
asking          the queries behind `hourglass why`: the run, the pollers of its queues, the worker, its children
problems        which runs of a list make no progress, their number, and filters for them
"""
