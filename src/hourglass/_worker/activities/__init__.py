"""Execution of activity attempts.

attempts              one attempt in progress, as the control loop and the activity see it
invocation            the call of an activity's function
outcomes              results of attempts
executors             attempts by token: start, cancellation, grace periods
automatic_heartbeats  heartbeats for activities without a heartbeat timeout
runners               the choice of thread, event loop or process for an attempt
activity_threads      threads for `def` activities
activity_loop         our event loops for `async def` activities
program_loop          the program's own event loop, for `async def` activities of `hourglass.aio`
process_pool          processes for activities with `executor="process"`
child_process         the parent's side of one child process
process_child         the program of a child process
process_names         names of activities and converters, by which a child process imports them
process_wire          the messages between a worker and a child process
publishing            published progress of attempts, on its way to the engine
reporting             results and heartbeats of attempts that outlive their handle
"""
