"""Threads that run workflow code.

lane             one thread that runs workflow code
lanes            the lanes of a worker: each run has a lane, and a lane that hangs or dies is replaced
places           the table of lanes and of the runs on them
hang_detector    detection of lanes whose code does not return
relief           the relocation of runs that wait behind slow code to another lane
evaluation       the evaluation of one activation on a lane
run_log          the log messages about a lane's runs
counts           the counters of a lane
cache            the state of runs between activations
turn_rules       the order of turns for runs that temporalio began
nesting          the depth of a run in its family of parents and children
watcher          detection of calls that workflow code must not make
forbidden_calls  the table of the calls that workflow code must not make
passed_handlers  detection of `except` clauses that miss a failure that their author meant to catch
"""
