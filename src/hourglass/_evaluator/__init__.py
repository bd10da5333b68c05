"""PURE: the evaluator, which makes a function durable.

Events in, commands out. Nothing here knows a clock, a file, a network or Temporal's classes; random numbers
come from the run's seed. Three modules know asyncio, as a library of tasks and not of I/O, and are imported
by the first coroutine. In reading order:

    specs             the options of activities, starts, children and worker versions, as checked data
    retries           the retry policy's decisions and delays
    behaviour         differences in the order of events, by the SDK that began a run and by the flags of its history
    events            the events of a run
    commands          the commands of a run
    state             the state of a run as data: the journal, and values derived from it
    scheduler         turns: a queue of ready callbacks, futures, conditions
    fibers            lines of execution that can be suspended anywhere; the only module that knows greenlet
    call_sites        the author's line that issued a command or raised an error
    context           a run while it executes: its scheduler, its fibers, the facts of the current activation
    definition        the definition of a decorated function or class, validated at its definition
    options           the options of activities, children and timers, validated at the call
    event_groups      groups of related commands
    operations        the operations that fibers wait for: timers, activities, children, other workflows
    event_loop        asyncio's tasks on the run's scheduler, for `async def` code
    thread_guard      rejects threads and executors in coroutines
    awaited           the operations that coroutines wait for, in the turns of temporalio's own tasks
    built_in_queries  queries that every run answers about itself
    messages          signals, updates and queries, and the fibers of their handlers
    interception      interceptors between a run and its code
    apply             the start and the end of a run, and a handler for each kind of event
    words             commands in the terms of a history, and in words
    evaluator         an activation in, a completion out
    verify            re-execution of the journal, and comparison
"""
