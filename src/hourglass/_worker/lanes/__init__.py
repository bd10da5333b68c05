"""Threads that run workflow code.

lane             one thread that runs workflow code, and the detection of code that does not return
lanes            all lanes of a worker: queued runs leave a hung lane, and a replacement lane takes over
evaluation       the evaluation of one activation on a lane
cache            the state of runs between activations
generations      the depth of a run in its family of parents and children
watcher          detection of calls that workflow code must not make
passed_handlers  the `except` clauses that let a failure pass although their author meant to catch it
"""
