"""PURE: how a function becomes durable.

Events in, commands out. Nothing here knows a clock, a file, a network or Temporal's classes; randomness comes from the
run's seed. Three files know asyncio, as a library of tasks and not of I/O, and are loaded by the first coroutine. In reading
order:

    specs             what an author may say of an activity, a start, a child, a version: held, never copied
    retries           when something that failed is tried again
    behaviour         in what the order of things differs by who began a run, and by what its history has recorded
    events            what can happen to a run
    commands          what a run can ask for
    state             all that is known of a run, as data: the journal, and what follows from it
    scheduler         turns: a queue of ready callbacks, futures, conditions
    fibers            lines of execution that can be suspended anywhere; alone in knowing greenlet
    call_sites        where in the author's code a command was asked for, an error raised
    context           a run while it executes: its scheduler, its fibers, the facts of the current activation
    definition        what a decorated function or class is, checked where it is defined
    options           what authors may say of activities, children and timers, checked where it is said
    event_groups      which of the things that a run asks for belong together
    operations        what fibers wait for: timers, activities, children, other workflows
    event_loop        asyncio's tasks on the run's scheduler, for `async def` code
    thread_guard      refuses threads and executors in coroutines
    awaited           what coroutines wait for: `operations` in the turns of temporalio's own tasks
    built_in_queries  what every run answers about itself
    messages          signals, updates and queries, and the fibers of their handlers
    interception      what may stand between a run and its code
    apply             how a run begins and ends, and one handler for each kind of event
    words             what a run asked for, in the terms of a history and in words
    evaluator         an activation in, a completion out
    verify            the journal executed again, and compared
"""
