"""Nondeterminism bugs as people write them.

A bug begins with a comment that contains its name, which is also the name of its workflow. If the bug is a change, the code
before the change has the suffix `_before`. The tables `ARGUMENTS`, `EARLIER_RUNS` and `DRIVERS` of a file say what the
workflow needs. The comment `# caught: check HG101, watch` marks the line that a net must name:

    check HGnnn   the linter, which reads the code
    watch         the call watcher, while the workflow runs
    verify        the second execution, in the same process
    replay        the replay of a recorded history, in another process and with the new code
    parked        nothing is nondeterministic, but the run is parked with an exception from this line
"""
