"""Faults, and a table of what became of them: `python -m tests.chaos --seed 7 [--only NAME …] [--quick]`.

- `outcome`: what a fault gives back, how large it is run, and the table.
- `waiting`: every wait has a limit; one that passes tells what was open.
- `leaks`: what a process holds, before and after.
- `testbed`: servers, workers and runs for the faults; `work`: the workflows they run.
- `faults`: all of them by name. Each is a function `(seed, scale) -> Outcome`; what it chooses follows from the seed.
"""
