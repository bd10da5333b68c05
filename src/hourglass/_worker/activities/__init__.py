"""Execution of activity attempts.

attempts          one attempt in progress, as the control loop and the activity see it
invocation        the call of an activity's function
outcomes          results of attempts
executors         attempts by token: start, cancellation, grace periods
automatic_heartbeats  heartbeats for attempts without a heartbeat timeout of the author's
runners           the choice of thread, event loop or process for an attempt
activity_threads  threads for `def` activities
activity_loop     our event loops for `async def` activities
program_loop      the program's own event loop, for `async def` activities of `hourglass.aio`
process_pool      processes for activities with `executor="process"`
child_process     one such process, as its parent sees it
process_child     the program of such a process
process_names     activities and converters by name, so that such a process can import them
process_wire      the messages between a worker and such a process
publishing        published progress of attempts, on its way to the engine
reporting         results and heartbeats of attempts that outlive their handle
"""
