"""Nondeterminism bugs as people write them, one per file.

A file names its workflow `bug`, what it is given `arguments`, and, where the bug is a change, the code before it `old`.
The comment `# caught: check HG101, watch` marks the line that a net must name:

    check HGnnn   the linter, which reads the code
    watch         the call watcher, while the workflow runs
    verify        the second execution, in the same process
    replay        the replay of a recorded history, in another process and with the new code
    parked        nothing is nondeterministic, but the run is parked with an exception from this line
"""
