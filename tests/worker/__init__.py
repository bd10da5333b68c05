"""The worker's parts, with a scripted handle in place of an engine."""
