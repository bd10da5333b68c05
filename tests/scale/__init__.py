"""Large runs: the cost of an event is independent of the size of the run. Work is counted instead of timed."""
