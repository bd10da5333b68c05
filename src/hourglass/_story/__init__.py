"""What a run did, from its history, and why it stands as it does; drawn for terminals, browsers and paper.

Pure, but for those that ask a client, for the commands and the web UI alike: `watching`, `asking` and `problems`.

text           durations, moments, and how wide text is
spans          the story as data, and as JSON
values         payloads as short text
faults         failures as chains of faults, and Python's stacks in them
steps          events become steps, messages and notes
timeline       from the events of a history to the story of its run
diagnosis      what `hourglass why` says, as data
advice         what to do about it
reasons_tasks  why a run's code is not run
reasons_closed why a closed run ended as it did
reasons        why a run stands as it does
axis           where a moment stands in a picture; many spans into few
standing       how an open run stands: running, parked, an activity fails, no worker
captions       what stands beside the bars
problems       which runs of a list do not go on, how many there are, and filters for them
terminal       the story drawn with characters
svg            the story as a picture
html           the story as a page
watching       the story of a run that a client knows, or of a file with a history
asking         what `hourglass why` asks: the run, the pollers of its queues, the run itself, its children
"""
