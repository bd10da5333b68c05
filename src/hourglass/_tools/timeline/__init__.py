"""The story of a run: the steps of its history, and the reasons for its current state, drawn for the terminal,
the browser and paper.

Pure, except for the modules that query a client, for the command line and the web UI alike: `watching`,
`asking` and `problems`.

    text            durations, times, and the width of text
    spans           the story as data, and as JSON
    values          payloads as short text
    faults          failures as chains of faults, and the Python stacks in them
    steps           from events to steps, messages and notes
    timeline        from the events of a history to the story of its run
    diagnosis       the result of `hourglass why`, as data
    advice          suggested actions for each cause
    reasons_tasks   why a run's workflow task is not processed
    reasons_closed  why a closed run ended as it did
    reasons         why a run is in its current state
    axis            positions on the time axis; folding many spans into few
    standing        the state of an open run: running, parked, failing activity, no worker
    captions        the text beside the bars
    problems        runs in a list that make no progress: which, their number, and filters for them
    terminal        the story drawn with characters
    svg             the story as a picture
    html            the story as an HTML page
    watching        the story of a run known to a client, or of a history file
    asking          the queries behind `hourglass why`: the run, the pollers of its queues, the worker, its children
"""
