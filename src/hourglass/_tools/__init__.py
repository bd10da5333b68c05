"""Tools for people, on top of the public API.

timeline   what a run did, from its history, as data and as pictures
diagnosis  why a run is in its current state (`hourglass why`)
lint       the checks of `hourglass check`
web        the web UI
cli        the `hourglass` command
"""
