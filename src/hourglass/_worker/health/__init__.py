"""User code that hangs, processes that die, runs that cannot continue.

hung        the stack of code that does not return, from this process or another; stopping its thread
lane_notes  the run and the code that each lane is executing, written where another process can read them
deaths      the runs that were executing when a process died
guarded     the worker's side of its guardian, and the messages between the two
guardian    a small parent process that replaces a worker process which hangs in a C call
parked      parked and quarantined runs
"""
