"""One run that is large: what an event of it costs does not depend on how many there are. Work is counted, not timed."""
