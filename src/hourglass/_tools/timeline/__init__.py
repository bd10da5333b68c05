"""The timeline of a run, built from its history and drawn for terminal, browser and print.

Pure, except `watching`, which queries a client.

text      durations, times, and the width of text
spans     the timeline as data, and as JSON
values    payloads as short text
faults    failures as chains of faults, and Python's stacks in them
steps     from events to steps, messages and notes
timeline  from the events of a history to the timeline of its run
axis      positions on the time axis; folding many spans into few
run_state  the state of an open run: running, parked, an activity fails, no worker
captions  the text beside the bars
terminal  the timeline drawn with characters
svg       the timeline as a picture
html      the timeline as a page
watching  the timeline of a run known to a client, or of a history file
"""
