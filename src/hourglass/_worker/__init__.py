"""The worker: everything that runs user code, below the public `Worker`.

Subpackages. Each imports only the subpackages listed above it:

    handles          the holder of all handles: registrations, receivers, completions, draining
    health           hung code, processes that die, parked runs and runs in quarantine
    lanes            threads that run workflow code, the cache of runs, the evaluation of an activation
    activities       execution of activity attempts: threads, event loops, processes; heartbeats and results
    tree             the supervision tree and its children; dispatch of items to lanes and activities; status

Modules shared by them:

portal            calls from any thread or event loop into the control loop
mailbox           calls from other threads to an event loop, with a single wake-up for a burst
daemon_executor   threads for blocking calls, which do not keep the process alive
targets           the engine that a client connects to, from a str, the environment or a profile
stop_event        an event that a signal handler may set
cpus              the number of CPUs, and the binding of processes to them
interpreter       process-wide settings of Python that a worker changes on request
resolver          lookup of decorated objects by type name
code_origin       whether a file belongs to Hourglass, to a library or to the author
work_log          log messages about runs and attempts that fail, time out or are dropped
activity_metrics  metrics of activity attempts
"""
