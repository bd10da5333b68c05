"""User code that hangs, processes that die, and runs that cannot make progress.

stacks       the stack of code that hangs, as text
debuggers    breakpoints and debuggers, at which code may stop for any time
stopping     stopping a thread whose code does not return
parked       the reasons for which runs are parked
quarantine   runs that are not executed because they hung or killed processes
incidents    the record of these runs, across processes
lane_notes   notes of the runs that a process is executing, in memory that survives the process
inspection   the state of another process
guarded      the worker process's connection to its parent
guardian     the parent process, which replaces worker processes that end or hang
"""
