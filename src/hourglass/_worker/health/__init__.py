"""User code that hangs, processes that die, and runs that cannot make progress.

stacks       the stack of code that hangs, as text
debuggers    breakpoints and debuggers, at which code may stop for as long as a developer likes
stopping     stopping a thread whose code does not return
parked       the reasons of parked runs
quarantine   runs that are not executed because they hung or killed processes
incidents    the record of such runs, across processes
lane_notes   the runs that a process executes, in memory that survives it
inspection   the state of another process
guarded      the worker process's side of its parent
guardian     the parent process, which replaces worker processes that end or hang
"""
