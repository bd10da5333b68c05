"""What makes it run: the control loop's thread, the supervision tree, lanes, activities, targets.

The control loop:
    portal            the way from any thread or loop to the control loop
    daemon_executor   threads for blocking calls that keep no process alive
    targets           which engine a client talks to, from a text, the environment or a profile

The tree:
    plan              what a worker was asked to be, checked
    application       all that serves one connection, and what outlives the tree's processes
    subsystem         the supervision tree, as one readable expression
    processes         the bodies of the tree's processes
    services          what serves one task queue and outlives its Worker
    dispatch          from an engine to an answer: one job per item, which is also its entry in the book of work in flight
    codec_edge        a codec around a handle
    watchdog          looks for what should be impossible, and mends what stays so; whether the engine sees and answers us
    work_log          what the log says of runs and attempts that fail, time out or are dropped; what metrics count of attempts
    worker_view       what a worker tells of itself, its states, Ctrl-C and SIGTERM
    status            the same over HTTP, `/live`, `/ready` and `/status`, and as metrics
    stop_event        an event that a signal handler may set

Workflow code:
    resolver          from a type name on the wire to a decorated object
    cache             what is kept of runs between activations
    parked            runs that cannot go on, and runs that are held back
    parked_watch      how many runs are parked, by what the engine says
    generations       how deep a run stands in a family of workflows
    evaluation        what a lane does with an activation
    lane, lanes       one thread that runs workflow code, and how it is seen to hang; all of a worker's, and how one that hangs is
                      relieved and replaced
    lane_notes        which run each lane is at, in which code, noted where another process can read it
    deaths            which runs were executing when a process died
    hung              where code that does not come back stands, seen from this process or another; how its thread is stopped
    watcher           calls that workflow code must not make, seen while it runs
    code_origin       whether a file is ours, the library's or the author's
    passed_handlers   which `except` let a failure pass that its author meant to catch

Activities:
    attempts          one attempt: the call itself, its end as the engine wants to hear it, the attempt in flight
    activity_threads  threads for `def` activities
    activity_loop     event loops for `async def` activities
    program_loop      the program's own event loop, for `async def` activities of `hourglass.aio`
    process_wire      what a worker and a process beside it say to each other
    process_pool      processes for activities with `executor="process"`
    process_child     the program of such a process
    publishing        what attempts publish, on its way to the engine
    reporting         results and heartbeats of attempts that outlive their handle
    executors         runs one attempt where it belongs
    interpreter       process-wide settings of Python that a worker changes on request
    processors        how many there are, and one for each of several processes

The guardian, a small parent process that replaces a worker's process that cannot be saved:
    guarded           the guarded side, and what the two tell each other
    guardian          the guardian's side
"""
